"""Measures how full batches are when lengths differ widely: 10 to 1,000 tokens in, 5 to 500 out.

Lengths are log-normal, and how long a completion becomes is not known beforehand to whoever orders the rows. The last line is JSON:
``padding`` is padded to real tokens in prefill, ``filled`` the share of decode slots that held a row, ``filled_before_the_end`` the
same until fewer rows are left than there are slots. The 5 M shape: what is measured does not depend on the model.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from networks import shapes
from peers import ours
from peers.completing import Completing
from racing.about import about, table
from racing.lengths import draw

import numpy as np
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Generate, Request, Sampling
from mlx_bulk.runner.engine.engine import Engine

IN, OUT = (10, 1000), (5, 500)
SPREAD = 1.0  # of the lengths' logarithm: one row in six is e times longer than the middle one


def lengths(rng: np.random.Generator, rows: int, least: int, most: int) -> list[int]:
    """Log-normal around the geometric middle, clipped."""
    return np.clip(rng.lognormal(np.log(least * most) / 2, SPREAD, rows), least, most).astype(int).tolist()


def asked(rows: int, vocabulary: int) -> list[Request]:
    """The rows, each with its own number of new tokens."""
    rng = np.random.default_rng(0)
    prompts = [draw(rng, length, vocabulary) for length in lengths(rng, rows, *IN)]
    new = lengths(rng, rows, *OUT)
    requests = ours.requests(Completing(prompts, 1, 1))
    return [
        Request(r.row, r.prompt, Generate(Sampling(max_tokens=n, temperature=0.0, ignore_eos=True), r.work.samples))
        for r, n in zip(requests, new, strict=True)
    ]


def filled(engine: Engine, requests: list[Request], rows: int) -> tuple[float, float]:
    """Shares of the slots that held a row: until fewer than ``rows`` rows are left, and in all."""
    windows, before, done = iter([requests]), 1.0, 0
    next_window: Callable[[bool], list[Request] | None] = lambda wait: next(windows, None)  # noqa: E731
    for outcome in engine.run(next_window):
        assert isinstance(outcome, Generated), outcome
        done += 1
        if done == len(requests) - rows + 1:
            before = engine.progress.generated / engine.progress.slot_steps
    assert done == len(requests), "some rows failed"
    return before, engine.progress.generated / engine.progress.slot_steps


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2048, help="Rows of the work.")
    parser.add_argument("--rows", type=int, default=32, help="Rows that decode at once.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        shapes.save(Path(name), shapes.LLAMA_5M)
        engine = ours.engine(shapes.setup(Path(name), LogprobOptions(), args.rows))
    began = time.perf_counter()
    before, whole = filled(engine, asked(args.count, shapes.LLAMA_5M["vocab_size"]), args.rows)
    seconds = time.perf_counter() - began
    progress = engine.progress
    figures = {
        "padding": round(progress.padded / progress.prefilled, 4),
        "filled": round(whole, 4),
        "filled_before_the_end": round(before, 4),
        "prefilled": progress.prefilled,
        "generated": progress.generated,
        "generated_per_second": round(progress.generated / seconds, 1),
    }
    table({name: [value] for name, value in figures.items()}, [f"{args.count} rows, {args.rows} at once"])
    print(json.dumps({"benchmark": "skew", "count": args.count, "rows": args.rows, **figures, **about()}))


if __name__ == "__main__":
    main()
