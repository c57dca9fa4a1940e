"""Every architecture against transformers in float32: generation and scoring, on random weights of some 100 M parameters each.

    python benchmarks/architectures.py --data gsm8k_test.jsonl
    python benchmarks/architectures.py --names mamba2 qwen3_moe --work score

``--prompts`` prompts of GSM8K's lengths with ``--new`` greedy tokens each, 16 rows at once; or as many questions with their answers
scored. transformers gets prompts sorted by length, and for scoring the best of several batch sizes. It builds the checkpoints, so it must
be installed (the extra `bench` has it). Outputs are compared; an architecture that differs or fails is listed with the reason, and the
program ends with 1. The last line is JSON.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import agreement
import torch_peer
from about import about, table
from completing import Completing
from hf_shapes import SHAPES, VOCABULARY, save
from lengths import Texts, texts
from options import options, raced
from turns import compare, race, serve

ROWS = 16  # that are decoded at once
WORKS = ("generate", "score")
PEERS = ["ours", "transformers"]


def build(peer: str, folder: Path) -> Callable[[], Any]:
    """The peer's work, ready."""
    if (folder / "work").read_text() == "generate":
        work = Completing.load(folder)
        if peer == "ours":
            import ours

            return ours.generate(folder, work)
        return torch_peer.generate(folder, work, ordered=True)
    rows = Texts.load(folder).joined
    if peer == "ours":
        import ours

        return ours.score(folder, rows)
    return torch_peer.score(folder, rows, logits=not SHAPES[(folder / "name").read_text()].bare_head)


def measured(name: str, work: str, asked: Texts, new: int, rounds: int) -> dict[str, Any]:
    """Ours and transformers in turns. Raises DisagreementError where they differ, SystemExit where one of them fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parameters = save(folder, name)
        (folder / "work").write_text(work)
        (folder / "name").write_text(name)
        asked.save(folder)
        Completing(asked.questions, new, ROWS).save(folder)
        results = race(__file__, PEERS, folder, rounds)
    own, other = (results[peer].pop("found") for peer in PEERS)
    if work == "generate":
        agreed: Any = agreement.greedy("transformers", own, other)
        tokens = len(asked.questions) * new
    else:
        agreed = agreement.sums("transformers", own, other, agreement.SUM)
        tokens = sum(len(row) - 1 for row in asked.joined)
    ratio = compare(results, dict.fromkeys(PEERS, tokens))
    return {"ratio": ratio["transformers"], "parameters": parameters, "agreement": agreed, **results}


def main() -> None:
    """Runs all races, or one peer of one of them."""
    parser = options(__doc__, shapes=(), prompts=16, new=24, rounds=3)
    parser.add_argument("--names", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    raced(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder))
        return
    asked = texts(args.data, args.prompts, VOCABULARY)
    found: dict[str, dict[str, Any]] = {}
    for name in args.names:
        for work in args.work:
            try:
                found[f"{name} {work}"] = measured(name, work, asked, args.new, args.rounds)
            except (agreement.DisagreementError, SystemExit) as error:
                found[f"{name} {work}"] = {"failed": str(error)}
    failed = {run: figures["failed"] for run, figures in found.items() if "failed" in figures}
    fine = {run: figures for run, figures in found.items() if run not in failed}
    table(
        {run: [figures["ours"]["tokens_per_second"], figures["ratio"], figures["parameters"]] for run, figures in fine.items()},
        ["tok/s", "ours to transformers", "parameters"],
    )
    for run, reason in failed.items():
        print(f"{run}: {reason}")
    print(json.dumps({"benchmark": "architectures", "new": args.new, "rows": ROWS, "lengths": asked.source, "runs": found, **about()}))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
