"""How long rows that decode wait while long prompts are prefilled, and what the shorter waits cost; on the CPU's path and the generic one.

    python benchmarks/stalls.py
    python benchmarks/stalls.py --shape 135m --prefill-tokens 512 2048

(a) ``gap``: rows decode, then long prompts arrive. The longest time between two tokens of a row, over the time of a ``chunk``: the
longest call of such a prefill, made alone. Without a limit (``drained``) rows wait for a whole prompt. ``busy_gap`` is the same ratio
in seconds of the processor, which other work on the machine disturbs less than the clock. Each is the middle of the rounds.

(b) ``seconds`` of a job whose rows are all long, with few new tokens: the worst case, as each step between two chunks has few rows. The
settings take turns; figures are the middle of the rounds. ``prefill`` and ``decode`` are seconds of the processor. ``slower``: their
sum over that without a limit. On the generic path a step may wait for a chunk that was sent before it, so there only the sum means
anything.

Each path runs in a process of its own: ``cpu`` with our kernels, ``generic`` with mlx's operations, as on Metal and CUDA. The last lines
hold the largest gap of all settings with a limit to its bar, by the clock and by the processor's; the very last one is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

CHUNKS = 2.0  # the bar of a gap
PATHS = {"cpu": "", "generic": "generic"}  # values of MLX_BULK_CPU


def main() -> None:
    """Both paths, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("5m", "135m", "toy"), default="5m")
    parser.add_argument("--prefill-tokens", type=int, nargs="+", default=[256, 512, 1024, 2048], help="Settings of batch.prefill_tokens.")
    parser.add_argument("--length", type=int, default=8192, help="Tokens of a long prompt.")
    parser.add_argument("--count", type=int, default=4, help="Rows of (b).")
    parser.add_argument("--new", type=int, default=16, help="New tokens of a row in (b).")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--path", choices=PATHS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.path is not None:
        print(json.dumps(measured(args)))
        return
    figures: dict[str, Any] = {}
    for path in args.paths:
        environment = {name: value for name, value in os.environ.items() if name != "MLX_BULK_CPU"}
        if PATHS[path]:
            environment["MLX_BULK_CPU"] = PATHS[path]
        command = [sys.executable, *sys.argv, "--path", path]
        figures[path] = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
    from racing.about import about, table
    from racing.bars import Bar, told

    columns = ["gap_ms", "chunk_ms", "gap", "busy_gap", "seconds", "prefill", "decode", "slower", "steps"]
    shown = {f"{path}, {name}": [own.get(column) for column in columns] for path, each in figures.items() for name, own in each.items()}
    table(shown, columns)
    sizes = {name: getattr(args, name) for name in ("shape", "length", "count", "new", "rounds")}
    limited = {path: [found for name, found in each.items() if name != "drained"] for path, each in figures.items()}
    bars = [
        Bar(f"{path}, largest {gap} in chunks", max(found[gap] for found in each), CHUNKS)
        for path, each in limited.items()
        for gap in ("gap", "busy_gap")
    ]
    print(json.dumps({"benchmark": "stalls", **sizes, **figures, **told(bars), **about()}))


def measured(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The figures of one path, by setting."""
    from networks import shapes

    from mlx_bulk.runner.core.logprob_options import LogprobOptions

    with tempfile.TemporaryDirectory() as name:
        shapes.save(Path(name), shapes.SHAPES[args.shape])
        setup = shapes.setup(Path(name), LogprobOptions(), rows=16)
    auto = {f"auto ({setup.prefill_tokens})": setup}
    setups = {"drained": replace(setup, prefill_tokens=sys.maxsize)} | auto
    setups |= {str(tokens): replace(setup, prefill_tokens=tokens) for tokens in args.prefill_tokens}
    figures = {name: stall(each, args) for name, each in setups.items()}
    took: dict[str, list[dict[str, float]]] = {name: [] for name in setups}
    for turn in range(args.rounds + 1):
        for name, each in setups.items():
            found = job(each, args)
            if turn:  # the first one warms up
                took[name].append(found)
    for name, own in took.items():
        for figure in own[0]:
            figures[name][figure] = round(statistics.median(each[figure] for each in own), 2)
        rounds = zip(own, took["drained"], strict=True)
        figures[name]["slower"] = round(statistics.median(busy(mine) / busy(drained) for mine, drained in rounds), 3)
    return figures


def busy(found: dict[str, float]) -> float:
    """Seconds of the processor."""
    return found["prefill"] + found["decode"]


def stall(setup: Any, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the longest gap, and of a chunk."""
    (chunk, busy_chunk), (gap, busy_gap) = (
        [statistics.median(seconds) for seconds in zip(*(find(setup, args) for _ in range(args.rounds)), strict=True)]
        for find in (longest_call, longest_gap)
    )
    return {
        "gap_ms": round(1e3 * gap, 1),
        "chunk_ms": round(1e3 * chunk, 1),
        "gap": round(gap / chunk, 2),
        "busy_gap": round(busy_gap / busy_chunk, 2),
    }


def longest(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Seconds between two times, on the clock and of the processor."""
    clock, processor = (max(end - begin for begin, end in pairwise(each)) for each in zip(*times, strict=True))
    return clock, processor


def now() -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    return time.perf_counter(), time.process_time()


def longest_call(setup: Any, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the longest call of a long prompt's prefill, alone."""
    from networks.shapes import mx

    from mlx_bulk.runner.engine.prefill import prefill_by_calls

    work, ends = prefill_by_calls(replace(setup.beside_decoding, ahead=False), asked(setup, [args.length], 1)), list[tuple[float, float]]()
    for _ in work:
        mx.synchronize()
        ends.append(now())
    return longest([*ends, now()])


class Clock:
    """Notes when a row gets its tokens, in place of what watches for stop strings."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def push(self, token: int) -> None:
        """Finds nothing."""
        self.times.append(now())


def longest_gap(setup: Any, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds between two tokens of a row, while two long prompts are prefilled."""
    from mlx_bulk.runner.engine.engine import Engine

    clock, calls = Clock(), 2 * -(-args.length // min(setup.limits.tokens, setup.prefill_tokens))
    watched = asked(setup, [24] * 4, calls + 32, stop=("never said",))
    windows = iter([watched, asked(setup, [args.length] * 2, 2, first=4), None])
    engine = Engine(setup, frozenset(), lambda sampling: clock)
    for outcome in engine.run(lambda wait: next(windows)):
        assert len(outcome.ids) in (2, calls + 32), outcome  # pyright: ignore[reportAttributeAccessIssue]
    return longest(clock.times[:: len(watched)])


class Spent:
    """Seconds of the processor by what an engine does, in place of what names its current step."""

    def __init__(self) -> None:
        self.seconds, self._now, self._since = {"prefill": 0.0, "decode": 0.0, "wait": 0.0}, "wait", time.process_time()

    def doing(self, what: str) -> None:
        """Ends what was done before."""
        now = time.process_time()
        self.seconds[self._now] += now - self._since
        self._now, self._since = next((name for name in ("prefill", "decode") if what.startswith(name[:5])), "wait"), now


def job(setup: Any, args: argparse.Namespace) -> dict[str, float]:
    """Seconds on the clock and of the processor, and decode steps."""
    from networks import shapes
    from peers import ours

    engine, spent = ours.engine(setup), Spent()
    engine.progress.activity = spent  # pyright: ignore[reportAttributeAccessIssue]
    clock = time.perf_counter()
    outcomes = shapes.generated(engine, asked(setup, [args.length] * args.count, args.new))
    assert all(len(outcome.ids) == args.new for outcome in outcomes)
    spent.doing("")
    return {"seconds": time.perf_counter() - clock, **spent.seconds, "steps": engine.progress.steps}


def asked(setup: Any, lengths: list[int], new: int, first: int = 0, stop: tuple[str, ...] = ()) -> list[Any]:
    """Greedy requests of random tokens, which share nothing."""
    from racing.lengths import FIRST_ID

    import numpy as np
    from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Sample, Sampling

    rng = np.random.default_rng(first)
    drawn = [rng.integers(FIRST_ID, setup.vocabulary, length).astype(np.int32) for length in lengths]
    work = Generate(Sampling(new, 0.0, stop=stop, ignore_eos=True), (Sample(0, 0),))
    return [Request(first + row, Prompt("", ids, ids), work) for row, ids in enumerate(drawn)]


if __name__ == "__main__":
    main()
