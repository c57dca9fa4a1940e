"""Runs the command with a model that aborts the process, as Metal does, when it gets a certain row.

A program: ``python aborting_jobs.py ROW TIMES run CONFIG …``. TIMES: how often at most; a file beside CONFIG counts.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

killer, times = int(sys.argv.pop(1)), int(sys.argv.pop(1))
deaths = Path(sys.argv[2]).with_name("deaths")

cli: Any = import_module("mlx_bulk.jobs.cli.main")
engine: Any = import_module("mlx_bulk.runner.engine.engine")
scorer: Any = import_module("mlx_bulk.runner.scoring.scorer")
pooler: Any = import_module("mlx_bulk.runner.pool_engine.pooler")
model_work: Any = import_module("mlx_bulk.runner.pipeline.model_work")
prefill, score_batch, call_tokens = engine.prefill_by_calls, scorer.Scorer._score_batch, scorer.call_tokens
isolated_outcomes = model_work.isolated_outcomes
pool_batch, pool_vectors = pooler.Pooler._pool_batch, pooler.Pooler._vectors
scored = set[int]()
loaded = [False]  # before, engine and scorer are tried on rows that are not the job's


def abort(rows: set[int]) -> None:
    count = len(deaths.read_text()) if deaths.exists() else 0
    if loaded[0] and killer in rows and count < times:
        deaths.write_text("x" * (count + 1))
        os.abort()


def prefilled(setup: Any, requests: Any, *bases: Any) -> Any:
    abort({request.row for request in requests})
    return prefill(setup, requests, *bases)


def scored_batch(self: Any, window: Any, batch: Any, caches: Any) -> Any:
    scored.clear()
    scored.update(window.rows[row].request.row for segment in batch for part in segment.reads for row, _ in part.owners)
    return score_batch(self, window, batch, caches)


def counted_tokens(setup: Any, rows: int, left: int) -> int:
    """Is called right before the model."""
    abort(scored)
    return call_tokens(setup, rows, left)


def pooled_batch(self: Any, window: Any, batch: Any) -> Any:
    scored.clear()
    scored.update(window.rows[row].request.row for each in batch.inputs for row, _ in each.owners)
    return pool_batch(self, window, batch)


def pooled_vectors(self: Any, batch: Any) -> Any:
    """Is called right before the model."""
    abort(scored)
    return pool_vectors(self, batch)


def begun(*arguments: Any) -> Any:
    loaded[0] = True
    return isolated_outcomes(*arguments)


model_work.isolated_outcomes = begun
pooler.Pooler._pool_batch, pooler.Pooler._vectors = pooled_batch, pooled_vectors
engine.prefill_by_calls, scorer.Scorer._score_batch, scorer.call_tokens = prefilled, scored_batch, counted_tokens
cli.main()
