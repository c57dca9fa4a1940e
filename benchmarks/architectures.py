"""Every architecture against transformers in float32: generation and scoring, on random weights of some 100 M parameters each.

    python benchmarks/architectures.py --data gsm8k_test.jsonl
    python benchmarks/architectures.py --tier avx2
    python benchmarks/architectures.py --names mamba2 qwen3_moe --work score

``--prompts`` prompts of GSM8K's lengths with ``--new`` greedy tokens each, 16 rows at once; or as many questions with their answers
scored. transformers gets prompts sorted by length, and for scoring the best of several batch sizes. It builds the checkpoints, so it must
be installed (the extra `bench` has it). Outputs are compared; an architecture that differs or fails is listed with the reason, and the
program ends with 1. The last line is JSON.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from networks.hf_shapes import SHAPES, VOCABULARY, save
from peers import torch_peer
from peers.completing import Completing
from racing import agreement, tiers
from racing.about import about, table
from racing.lengths import Texts, texts
from racing.options import options, raced
from racing.turns import compare, race, serve

ROWS = 16  # that are decoded at once
WORKS = ("generate", "score")
PEERS = ["ours", "transformers"]


def build(peer: str, folder: Path) -> Callable[[], dict[str, Any]]:
    """The peer's works, ready: what each found, and its seconds in each call but the first, which warms up."""
    ready = {work: _work(peer, folder, work) for work in json.loads((folder / "works.json").read_text())}
    seconds: dict[str, list[float]] = {work: [] for work in ready}

    def done() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for work, call in ready.items():
            began = time.perf_counter()
            found[work] = call()
            seconds[work].append(round(time.perf_counter() - began, 3))
        return {work: {"found": found[work], "seconds": seconds[work][1:]} for work in ready}

    return done


def _work(peer: str, folder: Path, work: str) -> Callable[[], Any]:
    if work == "generate":
        completing = Completing.load(folder)
        if peer == "ours":
            from peers import ours

            return ours.generate(folder, completing)
        return torch_peer.generate(folder, completing, ordered=True)
    rows = Texts.load(folder).joined
    if peer == "ours":
        from peers import ours

        return ours.score(folder, rows)
    return torch_peer.score(folder, rows, logits=not SHAPES[(folder / "name").read_text()].bare_head)


def measured(name: str, works: list[str], asked: Texts, new: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Ours and transformers in turns; of each work the figures, or why it failed. Raises SystemExit where a peer ends."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parameters = save(folder, name)
        (folder / "works.json").write_text(json.dumps(works))
        (folder / "name").write_text(name)
        asked.save(folder)
        Completing(asked.questions, new, ROWS).save(folder)
        raced = race(__file__, PEERS, folder, rounds)
    figures: dict[str, dict[str, Any]] = {}
    for work in works:
        results = {peer: {"seconds": raced[peer]["found"][work]["seconds"], "peak_mb": raced[peer]["peak_mb"]} for peer in PEERS}
        try:
            own, other = (raced[peer]["found"][work]["found"] for peer in PEERS)
            figures[work] = _compared(work, results, own, other, asked, new)
            figures[work]["parameters"] = parameters
        except agreement.DisagreementError as error:
            figures[work] = {"failed": str(error)}
    return figures


def _compared(work: str, results: dict[str, dict[str, Any]], own: Any, other: Any, asked: Texts, new: int) -> dict[str, Any]:
    """Raises DisagreementError."""
    if work == "generate":
        agreed: Any = agreement.greedy("transformers", own, other)
        tokens = len(asked.questions) * new
    else:
        agreed = agreement.sums("transformers", own, other, agreement.SUM)
        tokens = sum(len(row) - 1 for row in asked.joined)
    ratio = compare(results, dict.fromkeys(PEERS, tokens))
    return {"ratio": ratio["transformers"], "agreement": agreed, **results}


def main() -> None:
    """Runs all races, or one peer of one of them."""
    parser = options(__doc__, shapes=(), prompts=16, new=16, rounds=2)
    parser.add_argument("--names", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--tier", choices=list(tiers.BARS), help="The vector units that both are held to; without it, all there are.")
    raced(parser, PEERS)
    args = parser.parse_args()
    if args.peer:
        serve(partial(build, args.peer, args.folder))
        return
    if args.tier and os.environ.get(tiers.VARIABLE) != args.tier:  # this process has opened its BLAS, which the last line names
        os.environ[tiers.VARIABLE] = args.tier
        os.environ |= tiers.variables()
        os.execv(sys.executable, [sys.executable, *sys.argv])
    asked = texts(args.data, args.prompts, VOCABULARY)
    found: dict[str, dict[str, Any]] = {}
    for name in args.names:
        try:
            of_works = measured(name, args.work, asked, args.new, args.rounds)
        except SystemExit as error:
            of_works = {work: {"failed": str(error)} for work in args.work}
        for work, figures in of_works.items():
            found[f"{name} {work}"] = figures
            print(f"{name} {work}: {figures.get('ratio', 'failed')}", flush=True)
    failed = {run: figures["failed"] for run, figures in found.items() if "failed" in figures}
    fine = {run: figures for run, figures in found.items() if run not in failed}
    table(
        {run: [figures["ours"]["tokens_per_second"], figures["ratio"], figures["parameters"]] for run, figures in fine.items()},
        ["tok/s", "ours to transformers", "parameters"],
    )
    for work in args.work:
        ratios = [figures["ratio"] for run, figures in fine.items() if run.endswith(work)]
        if ratios:
            print(f"{work}: slowest {min(ratios)}, median {statistics.median(ratios):.2f}")
    for run, reason in failed.items():
        print(f"{run}: {reason}")
    print(
        json.dumps(
            {
                "benchmark": "architectures",
                "tier": args.tier,
                "new": args.new,
                "rows": ROWS,
                "lengths": asked.source,
                "runs": found,
                **about(),
            }
        )
    )
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
