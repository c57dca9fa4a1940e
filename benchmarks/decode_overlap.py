"""How far the host's work hides behind the device's while the engine decodes; on Linux's CPU, by mlx's operations and one BLAS thread.

    python benchmarks/decode_overlap.py
    python benchmarks/decode_overlap.py --profile    # where the host's time goes

mlx's stream thread is the device, the main thread the host. Linux says how long the device's thread sleeps: it waits for the host then.

(a) ``overlap``: the time of a step over the time in which the device does not sleep, on a network of some layers. 1: it never waits.

(b) ``host``: 64 rows with logprobs, the top 5, and stop strings in a quarter of the rows, on a network whose 36 layers do nothing.
``host_ms``: what the main thread computes in a step; ``between_ms``: what the device sleeps in a step.

The steps are timed in pieces. The pieces that other work on the machine disturbs least are taken, a quarter of all, and of their figures
the median. ``disturbed``: the share of their time for which the two threads had no processor; below 0.05 the figures can be trusted.
The last lines say whether the figures of decoding ahead keep to their bars; the very last one is JSON.
"""

import argparse
import cProfile
import json
import os
import pstats
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from racing.stream_thread import Piece

WARM = 16  # steps that are not counted
PROMPT = 24  # tokens
OVERLAP, HOST_MS, BETWEEN_MS = 1.05, 3.0, 0.3  # bars of the figures, for networks of full size


def main() -> None:
    """Prints both, with one step ahead and without."""
    os.environ |= {"MLX_BULK_CPU": "generic", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # before mlx is imported
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=208)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="tiny: to try the program.")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    small = args.size == "tiny"
    from networks.idle_network import idle_setup, layered_setup
    from racing.about import about, table
    from racing.bars import Bar, told

    figures: dict[str, dict[str, float]] = {}
    for name, setup in ways(layered_setup(small)).items():
        figures[name] = overlap(setup, 16, args)
    for name, setup in ways(idle_setup(small)).items():
        figures[name] |= host(setup, 8 if small else 64, args)
    columns = list(next(iter(figures.values())))
    table({name: [own[column] for column in columns] for name, own in figures.items()}, columns)
    ahead = figures["ahead"]
    bars = [Bar("overlap", ahead["overlap"], OVERLAP, ahead["overlap_disturbed"])]
    bars += [Bar(name, ahead[name], most, ahead["disturbed"]) for name, most in (("host_ms", HOST_MS), ("between_ms", BETWEEN_MS))]
    print(json.dumps({"benchmark": "decode_overlap", "size": args.size, "steps": args.steps, **figures, **told(bars), **about()}))


def ways(setup: Any) -> dict[str, Any]:
    """The setup with one step ahead and without."""
    return {"ahead": replace(setup, ahead=True), "step by step": replace(setup, ahead=False)}


def overlap(setup: Any, rows: int, args: argparse.Namespace) -> dict[str, float]:
    """Time of the steps over the device's own."""
    quiet = quiet_pieces(setup, rows, args)
    return {
        "overlap": round(median(piece.step / (piece.step - piece.asleep) for piece in quiet), 3),
        "overlap_disturbed": round(median(piece.disturbed for piece in quiet), 3),
    }


def host(setup: Any, rows: int, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of one step."""
    if args.profile:
        profile(setup, rows, args.steps)
    quiet = quiet_pieces(setup, rows, args)
    seconds = {
        "step_ms": median(piece.step for piece in quiet),
        "host_ms": median(piece.host for piece in quiet),
        "between_ms": median(piece.asleep for piece in quiet),
    }
    return {name: round(1e3 * own, 3) for name, own in seconds.items()} | {
        "disturbed": round(median(piece.disturbed for piece in quiet), 3)
    }


def quiet_pieces(setup: Any, rows: int, args: argparse.Namespace) -> "list[Piece]":
    """The least disturbed quarter of all rounds' pieces."""
    from racing.stream_thread import StepClock

    generate(setup, rows, WARM)
    pieces = list["Piece"]()
    for _ in range(args.rounds):
        with StepClock() as clock:
            generate(setup, rows, args.steps, clock)
        pieces += clock.pieces(WARM)
    return sorted(pieces, key=lambda piece: piece.disturbed)[: -(-len(pieces) // 4)]


def generate(setup: Any, rows: int, new: int, each_step: Callable[[], bool] = lambda: False) -> None:
    """Rows of ``new`` tokens, a quarter of them with stop strings that never come, where the setup has top logprobs."""
    from networks import shapes
    from networks.idle_network import tokenizer

    import numpy as np
    from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Sample, Sampling
    from mlx_bulk.runner.engine.engine import Engine

    rng = np.random.default_rng(0)
    ids = [rng.integers(3, setup.vocabulary, PROMPT).astype(np.int32) for _ in range(rows)]
    stops = [("\N{SNOWMAN}", "never said") if setup.wanted.top and row % 4 == 0 else () for row in range(rows)]
    requests = [
        Request(row, Prompt("", own, own), Generate(Sampling(new, 0.0, stop=stop, ignore_eos=True), (Sample(0, row),)))
        for row, (own, stop) in enumerate(zip(ids, stops, strict=True))
    ]
    outcomes = shapes.generated(Engine(setup, frozenset(), tokenizer().stopper), requests, each_step)
    assert all(len(outcome.ids) == new for outcome in outcomes)


def profile(setup: Any, rows: int, steps: int) -> None:
    """Prints the functions in which the host spends most."""
    with cProfile.Profile() as seen:
        generate(setup, rows, steps)
    pstats.Stats(seen).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
