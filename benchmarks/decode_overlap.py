"""How far the host's work hides behind the device's while the engine decodes; on a CPU, by mlx's operations and one thread of the BLAS.

    python benchmarks/decode_overlap.py
    python benchmarks/decode_overlap.py --profile    # where the host's time goes

(a) ``overlap``: the time of 200 steps over that of the same steps when nothing waits for the host (``queued_steps.py``), of a network of
some layers. mlx's stream thread is the device, the main thread the host. 1 means that the device never waits.

(b) ``host``: 64 rows with logprobs, the top 5, and stop strings in a quarter of the rows, on a network whose 36 layers do nothing.
``host_ms``: what the main thread computes in a step (its processor time, so not what it waits); ``between_ms``: the time of a step, less
that of the same step when nothing waits for the host: nothing was queued then. There the device's step takes some milliseconds, all in
the head and the draw.

A time of many steps is that of rows with many tokens less that of the same rows with few. Each figure is the least of some rounds, as
other work on the machine can only add to it. The last line is JSON.
"""

import argparse
import cProfile
import json
import os
import pstats
import time
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice
from typing import Any

SHORT = 16  # tokens of the rows whose time is taken off
PROMPT = 24  # tokens


def main() -> None:
    """Prints both, with one step ahead and without where the engine can do either."""
    os.environ |= {"MLX_BULK_CPU": "generic", "OPENBLAS_NUM_THREADS": "1"}  # before mlx is imported
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=208)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="tiny: to try the program.")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    small = args.size == "tiny"
    from about import about, table
    from idle_network import idle_setup, layered_setup

    figures: dict[str, dict[str, float]] = {}
    for name, setup in ways(layered_setup(small)).items():
        figures[name] = {"overlap": overlap(setup, 16, args)}
    for name, setup in ways(idle_setup(small)).items():
        figures[name] |= host(setup, 8 if small else 64, args)
    columns = list(next(iter(figures.values())))
    table({name: [own[column] for column in columns] for name, own in figures.items()}, columns)
    print(json.dumps({"benchmark": "decode_overlap", "steps": args.steps, **figures, **about()}))


def ways(setup: Any) -> dict[str, Any]:
    """The setup with one step ahead and without."""
    if "ahead" not in {field.name for field in fields(setup)}:
        return {"engine": setup}
    return {"ahead": replace(setup, ahead=True), "step by step": replace(setup, ahead=False)}


def overlap(setup: Any, rows: int, args: argparse.Namespace) -> float:
    """Time of the steps over that of the same steps when nothing waits for the host."""
    clock = steps_seconds(setup, rows, args, time.perf_counter)
    return round(clock / queued_seconds(setup, rows, args), 3)


def host(setup: Any, rows: int, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of one step."""
    if args.profile:
        profile(setup, rows, args.steps)
    steps = args.steps - SHORT
    clock, queued = steps_seconds(setup, rows, args, time.perf_counter), queued_seconds(setup, rows, args)
    busy = steps_seconds(setup, rows, args, time.thread_time)
    milliseconds = {"step_ms": clock, "queued_ms": queued, "host_ms": busy, "between_ms": clock - queued}
    return {name: round(1e3 * seconds / steps, 3) for name, seconds in milliseconds.items()}


def steps_seconds(setup: Any, rows: int, args: argparse.Namespace, clock: Callable[[], float]) -> float:
    """By a clock: the engine's ``steps`` less ``SHORT`` steps."""

    def took(new: int) -> float:
        began = clock()
        generate(setup, rows, new)
        return clock() - began

    took(SHORT)
    return min(took(args.steps) for _ in range(args.rounds)) - min(took(SHORT) for _ in range(args.rounds))


def queued_seconds(setup: Any, rows: int, args: argparse.Namespace) -> float:
    """Of as many steps, with as many keys."""
    from completing import Completing
    from queued_steps import STEPS, bursts

    count = (args.steps - SHORT) // STEPS
    rounds: list[list[float]] = []
    for _ in range(args.rounds):
        tried = bursts(setup, Completing([], 0, rows), PROMPT + SHORT, setup.vocabulary, rows, together=False)
        rounds.append([device for device, _ in islice(tried, count)])
    return sum(map(min, zip(*rounds, strict=True))) * (args.steps - SHORT) / (count * STEPS)


def generate(setup: Any, rows: int, new: int) -> None:
    """Rows of ``new`` tokens, a quarter of them with stop strings that never come, where the setup has top logprobs."""
    import numpy as np
    import shapes
    from idle_network import tokenizer
    from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Sample, Sampling
    from mlx_bulk.runner.engine.engine import Engine

    rng = np.random.default_rng(0)
    ids = [rng.integers(3, setup.vocabulary, PROMPT).astype(np.int32) for _ in range(rows)]
    stops = [("\N{SNOWMAN}", "never said") if setup.wanted.top and row % 4 == 0 else () for row in range(rows)]
    requests = [
        Request(row, Prompt("", own, own), Generate(Sampling(new, 0.0, stop=stop, ignore_eos=True), (Sample(0, row),)))
        for row, (own, stop) in enumerate(zip(ids, stops, strict=True))
    ]
    outcomes = shapes.generated(Engine(setup, frozenset(), tokenizer().stopper), requests)
    assert all(len(outcome.ids) == new for outcome in outcomes)


def profile(setup: Any, rows: int, steps: int) -> None:
    """Prints the functions in which the host spends most."""
    with cProfile.Profile() as seen:
        generate(setup, rows, steps)
    pstats.Stats(seen).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
