"""Tests one job of 3,000 rows under many random kills: no row lost, none twice, the bytes of an unbroken run.

It dies when a drawn number of rows has been handed to the writer, not by a clock; where the threads that write, read and compute
are at that moment is chance.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import read_results

from .points import RECORD, Point
from .tiny_runs import THOROUGH, TinyRun, parts

pytestmark = pytest.mark.slow

ROWS = 3000
KILLS = 50 if THOROUGH else 10
SETTINGS: dict[str, dict[str, Any]] = {
    "sampling": {"max_tokens": 2, "n": 1},
    "batch": {"rows": 30, "rows_per_shard": 60},
    "output": {"fsync_seconds": 0.01},
}


def recorded(run: Path) -> tuple[int, int]:
    """Rows that are committed, and rows that are in journals."""
    committed = sum(commit.rows for commit in read_commits(RunPaths(run)).commits.values())
    journals = [journal.peek(file)[0] for file in run.glob("journal/*")]
    return committed, sum(batch.num_rows for each in journals if each is not None for batch in each.results + each.errors)


def test_killed_at_random(run: TinyRun, tmp_path: Path):
    whole = TinyRun(tmp_path / "whole", run.children)
    for each in (run, whole):
        each.write("generate", ROWS, **SETTINGS)
    assert whole.start().code == 3

    draw, kills = random.Random(1), 0
    while kills < KILLS:
        before = recorded(run.path)
        row = draw.randint(1, (ROWS - sum(before)) // (KILLS - kills + 1))
        run.killed_at(Point("at random", RECORD, when=draw.choice(["before", "after"]), nth=row))
        kills += recorded(run.path) != before  # else nothing had gone on since the last one
    ended = run.start()
    assert ended.code == 3, ended.stderr
    assert parts(run.path) == parts(whole.path)
    assert [row for batch in read_results(run.path, ["row"]) for row in batch.column("row").to_pylist()] == [
        row for row in range(ROWS) if row not in (5, 9, 13)
    ]
    assert run.verify().exit_code == 3
