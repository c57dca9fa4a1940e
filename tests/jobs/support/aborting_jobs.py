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
scorer: Any = import_module("mlx_bulk.runner.engine.scorer")
pipeline: Any = import_module("mlx_bulk.runner.pipeline.session")
prefill, feed, chunk = engine.prefill, scorer.Scorer._feed, scorer.chunk
outcomes = pipeline.apart.outcomes
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


def fed(self: Any, members: Any, rows: Any, opened: Any, stopped: Any) -> Any:
    scored.clear()
    scored.update(opened[own[0]].request.row for segment in members for part in segment.reads for own in part.owners)
    return feed(self, members, rows, opened, stopped)


def chunked(setup: Any, rows: int, left: int) -> int:
    """Stands right before the model is called."""
    abort(scored)
    return chunk(setup, rows, left)


def begun(*arguments: Any) -> Any:
    loaded[0] = True
    return outcomes(*arguments)


pipeline.apart.outcomes = begun
engine.prefill, scorer.Scorer._feed, scorer.chunk = prefilled, fed, chunked
cli.main()
