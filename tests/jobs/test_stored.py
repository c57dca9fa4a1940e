"""Statistics as a run has stored them: those that its summary vouches for, or none."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlx_bulk.jobs.stored import stored_statistics

from ..runner.sessions import flip
from .bench import ROWS, Bench


def test_statistics_are_those_that_the_summary_vouches_for(bench: Bench):
    found = stored_statistics(bench.run().output)
    assert found is not None
    assert found.column("rows").to_pylist() == [len(ROWS)]


@pytest.mark.parametrize("name", ["stats.arrow", "summary.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_there_are_none_where_either_is_missing_or_damaged(bench: Bench, name: str, damage: Callable[[Path], None]):
    run = bench.run().output
    damage(run / name)
    assert stored_statistics(run) is None


def test_there_are_none_in_a_folder_that_is_no_run(tmp_path: Path):
    assert stored_statistics(tmp_path) is None
