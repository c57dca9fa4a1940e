"""Tests a run's stored statistics: those that its summary vouches for, or none."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.runs.run_files import stored_statistics

from ...jobs.support.bench import ROWS, Bench
from ..support.sessions import flip


def test_statistics_are_those_that_the_summary_vouches_for(bench: Bench):
    found = stored_statistics(bench.run().output)
    assert found is not None
    assert found.column("rows").to_pylist() == [len(ROWS)]


@pytest.mark.parametrize("name", ["stats.arrow", "summary.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_missing_or_damaged_files_give_no_statistics(bench: Bench, name: str, damage: Callable[[Path], None]):
    run = bench.run().output
    damage(run / name)
    assert stored_statistics(run) is None


def test_a_folder_that_is_no_run_has_no_statistics(tmp_path: Path):
    assert stored_statistics(tmp_path) is None


def test_who_reads_a_run_that_is_to_be_removed_is_told(bench: Bench):
    run = bench.run().output
    to = bench.root / "out.jsonl"
    commands = [
        ("verify", str(run)),
        ("verify", str(run), "--json"),
        ("compare", str(run), str(run)),
        ("export", str(run), "--format", "jsonl", "--to", str(to)),
    ]
    for sign in (False, True):
        if sign:
            with RunDir.open(run) as opened:
                opened.doom()
        for command in commands:
            done = CliRunner().invoke(cli, command)
            assert done.exit_code == 0, done.output
            assert ("holds an older run, which --overwrite is to remove" in done.output) is sign
            to.unlink(missing_ok=True)
