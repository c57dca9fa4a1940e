"""Measures the gain of shared prefixes: ours with sharing against ours without, in turns.

    python benchmarks/prefix_speed.py --work answers --data gsm8k_test.jsonl
    python benchmarks/prefix_speed.py --work samples

answers: the answers of 64 questions are scored behind one prefix of ``--prefix`` tokens (five solved examples); without sharing each
row is fed whole. ``kept`` is the speed on the tokens that are computed to that of scoring texts which share nothing, ``kept_flops`` the
same of floating-point operations: behind a prefix each token attends to it too, and of a question no logits are read.
samples: 16 completions of ``--new`` tokens for each of 16 prompts of ``--prefix`` tokens; against as many rows with a sample each,
whose prompts differ in their first token, so that nothing is shared. The 135 M shape. The last line is JSON: ``ratio`` is the median
over rounds of the seconds without sharing to those with it, ``computed`` the tokens that went through the model.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from peers.completing import Completing
from racing import agreement
from racing.about import about, table
from racing.lengths import FIRST_ID, Texts, draw, texts
from racing.options import options, served
from racing.turns import compare, race, serve

import numpy as np

PEERS = {"answers": ["shared", "apart", "texts"], "samples": ["shared", "apart"]}
PREFIX = {"answers": 800, "samples": 500}
SAMPLES = 16


def answers(peer: str, folder: Path) -> Callable[[], dict[str, Any]]:
    """Scores each answer behind prefix and question; ``texts``: question and answer alone, all of it."""
    from networks import shapes

    from mlx_bulk.runner.core.requests import Passage, ScoreRequest

    rows, prefix = Texts.load(folder), json.loads((folder / "prefix.json").read_text())
    setup = shapes.setup(folder)
    setup = setup if peer == "shared" else setup.with_features(shared_passages=False)
    before = [] if peer == "texts" else prefix

    def asked(row: int) -> ScoreRequest:
        context, answer = [*before, *rows.questions[row]], rows.answers[row]
        first = 1 if peer == "texts" else len(context)
        ids = np.array([*context, *answer], np.int32)
        return ScoreRequest(row, (Passage(ids, np.arange(first, len(ids), dtype=np.int32)),))

    requests = [asked(row) for row in range(len(rows.questions))]
    shape = json.loads((folder / "config.json").read_text())

    def sums() -> dict[str, Any]:
        scorer = shapes.Scorer(setup)
        outcomes = shapes.scored(scorer, requests)
        tokens, keys = fed([len(request.passages[0].ids) for request in requests], len(prefix) if peer == "shared" else 0)
        assert tokens == scorer.progress.prefilled, "it has not computed what it should have"
        found = [float(o.scores[0].logprobs.sum(dtype=np.float64)) for o in outcomes]
        return {
            "sums": found,
            "computed": tokens,
            "gflop": shapes.gflop(shape, tokens, keys, sum(len(o.scores[0].logprobs) for o in outcomes)),
        }

    return sums


def fed(lengths: list[int], shared: int) -> tuple[int, int]:
    """Tokens of rows that go through the model where their first ``shared`` do once, and the keys that they attend to.

    A row's last token does not: nothing comes behind it.
    """
    ends = np.array([shared, *(length - 1 for length in lengths)])
    begins = np.array([0, *[shared] * len(lengths)])
    keys = (ends * (ends + 1) - begins * (begins + 1)) // 2
    return int((ends - begins).sum()), int(keys.sum())


def samples(peer: str, folder: Path) -> Callable[[], dict[str, Any]]:
    """Draws ``SAMPLES`` completions a prompt, from one prefill or from one each; of the latter the first has the prompt as it is."""
    from networks import shapes
    from peers import ours

    from mlx_bulk.runner.core.logprob_options import LogprobOptions

    work, vocabulary = Completing.load(folder), json.loads((folder / "config.json").read_text())["vocab_size"]
    setup = shapes.setup(folder, LogprobOptions(), work.rows)
    if peer == "apart":
        work = replace(work, prompts=[_other(ids, index, vocabulary) for ids in work.prompts for index in range(SAMPLES)])
    requests = ours.requests(work, SAMPLES if peer == "shared" else 1)

    def completed() -> dict[str, Any]:
        engine = ours.engine(setup)
        outcomes = shapes.generated(engine, requests)
        return {"computed": engine.progress.prefilled + engine.progress.generated, **ours.found(outcomes[::SAMPLES])}

    return completed


def _other(ids: list[int], index: int, vocabulary: int) -> list[int]:
    """The prompt with another first token for each index but 0."""
    return [FIRST_ID + (ids[0] - FIRST_ID + index) % (vocabulary - FIRST_ID), *ids[1:]]


def prepare(args: argparse.Namespace, folder: Path, vocabulary: int) -> tuple[int, str]:
    """Writes the work into ``folder``; the tokens that a round is about, and what it is."""
    rng, length = np.random.default_rng(1), args.prefix or PREFIX[args.work]
    if args.work == "samples":
        prompts = [draw(rng, length, vocabulary) for _ in range(args.count or 16)]
        Completing(prompts, args.new, args.rows, temperature=0.8, top_p=0.95).save(folder)
        return len(prompts) * SAMPLES * args.new, f"{SAMPLES} samples of {args.new} tokens for {len(prompts)} prompts of {length}"
    rows = texts(args.data, args.count or 64, vocabulary)
    rows.save(folder)
    (folder / "prefix.json").write_text(json.dumps(draw(rng, length, vocabulary)))
    return sum(map(len, rows.answers)), f"answers of {len(rows.questions)} questions behind {length} common tokens, {rows.source}"


def main() -> None:
    """Runs the race, or one peer of it."""
    parser = options(__doc__, new=64, rows=32, rounds=3)
    parser.add_argument("--work", choices=list(PEERS), default="answers")
    parser.add_argument("--count", type=int, help="Questions (64), or prompts (16).")
    parser.add_argument("--prefix", type=int, help="Tokens in common (800), or of a prompt (500).")
    served(parser, PEERS["answers"])
    args = parser.parse_args()
    if args.peer:
        work = samples if (args.folder / "completing.json").exists() else answers
        serve(partial(work, args.peer, args.folder))
        return
    with tempfile.TemporaryDirectory() as name:
        from networks import shapes

        shape = shapes.SHAPES[args.shape]
        shapes.save(Path(name), shape)
        tokens, what = prepare(args, Path(name), shape["vocab_size"])
        results = race(__file__, PEERS[args.work], Path(name), args.rounds)
    found = {peer: result.pop("found") for peer, result in results.items()}
    if args.work == "answers":
        agreed: Any = agreement.sums("apart", found["shared"]["sums"], found["apart"]["sums"])
    else:
        agreed = agreement.seeded("apart", found["shared"], found["apart"])
    ratio = compare(results, {"shared": tokens, "apart": tokens})["apart"]
    computed = {peer: its["computed"] for peer, its in found.items()}
    compare(results, computed)
    speed = {peer: result["tokens_per_second"] for peer, result in results.items()}
    kept: dict[str, float] = {}
    if "texts" in speed:
        kept["kept"] = round(speed["shared"] / speed["texts"], 3)
        a_token = {peer: found[peer]["gflop"] / computed[peer] for peer in ("shared", "texts")}
        kept["kept_flops"] = round(kept["kept"] * a_token["shared"] / a_token["texts"], 3)
    table({peer: [results[peer]["seconds"], computed[peer], speed[peer]] for peer in results}, ["seconds", "tokens computed", "a second"])
    figures = {"ratio": ratio, "agreement": agreed, "computed": computed, **kept}
    print(json.dumps({"benchmark": "prefix_speed", "work": args.work, "shape": args.shape, "what": what, **figures, **results, **about()}))


if __name__ == "__main__":
    main()
