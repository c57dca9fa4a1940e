"""Ours as a peer: the project's own engine and scorer, fed with token ids as the pipeline feeds them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from networks import shapes
from peers.completing import Completing

import numpy as np
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Generate, Passage, Prompt, Request, Sample, Sampling, ScoreRequest
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.engine.setup import Setup

Ids = list[int]


def requests(work: Completing, samples: int = 1) -> list[Request]:
    """One a prompt, each with so many completions; a seed a completion."""
    sampling = Sampling(max_tokens=work.new, temperature=work.temperature, top_p=work.top_p, ignore_eos=True)
    return [
        Request(
            row,
            Prompt("", np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32)),
            Generate(sampling, tuple(Sample(index, row * samples + index) for index in range(samples))),
        )
        for row, ids in enumerate(work.prompts)
    ]


def engine(setup: Setup) -> Engine:
    """Nothing ends a completion but its length."""

    def no_stops(sampling: Sampling) -> Any:
        raise AssertionError("no row has stop strings")

    return Engine(setup, frozenset(), no_stops)


def found(outcomes: list[Generated]) -> dict[str, Any]:
    """What is compared with other peers."""
    return {"ids": [o.ids.tolist() for o in outcomes], "logprobs": [o.scores.logprobs.tolist() for o in outcomes]}


def generate(folder: Path, work: Completing) -> Callable[[], dict[str, Any]]:
    """Through the engine, ``work.rows`` rows at once."""
    setup, asked = shapes.setup(folder, LogprobOptions(), work.rows), requests(work)
    return lambda: found(shapes.generated(engine(setup), asked))


def score(folder: Path, rows: list[Ids]) -> Callable[[], list[float]]:
    """Through the scorer: each text's summed logprob."""
    setup = shapes.setup(folder)
    asked = [ScoreRequest(i, (Passage(np.array(ids, np.int32), np.arange(1, len(ids), dtype=np.int32)),)) for i, ids in enumerate(rows)]
    return lambda: [float(outcome.scores[0].logprobs.sum(dtype=np.float64)) for outcome in shapes.scored(shapes.Scorer(setup), asked)]
