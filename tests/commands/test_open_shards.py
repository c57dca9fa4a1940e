"""Finished records of open shards are read where that is asked for: by export --partial and from Python; nothing twice, in order."""

from pathlib import Path

import mlx_bulk
import pyarrow.parquet as pq
import pytest
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.writer import Writer

from ..jobs.support.bench import Bench
from ..jobs.support.exported_runs import export
from ..jobs.support.run_states import RUN, failure, work
from ..jobs.support.run_states import path as path
from ..runner.support.sessions import SCHEMA, record

FINISHED = [0, 1, 2, 3, 5]


@pytest.fixture
def stopped(path: Path) -> Path:
    """One shard of four rows is committed, the next holds row 5 and a failure of row 6 in its journal."""
    with RunDir.open(path) as run:
        work(run, range(4))
    with RunDir.open(path) as run:
        work(run, range(5, 6), [failure(6, "no")])
    assert "journal" in {entry.name for entry in path.iterdir()}
    return path


def test_a_partial_export_has_the_finished_records_of_open_shards(stopped: Path, tmp_path: Path):
    done = export(stopped, "parquet", f"{tmp_path}/out/", "--partial")
    assert "4 of 8 rows are committed; the others are missing here but for 1 finished record of theirs" in done.stderr
    assert "exported 5 records and 1 failure" in done.stderr
    assert pq.read_table(tmp_path / "out" / "results.parquet")["row"].to_pylist() == FINISHED
    assert pq.read_table(tmp_path / "out" / "errors.parquet")["row"].to_pylist() == [6]


def test_python_reads_them_where_it_asks(stopped: Path):
    assert mlx_bulk.results(stopped)["row"].to_pylist() == [0, 1, 2, 3]
    assert mlx_bulk.results(stopped, columns=["row"], partial=True).to_pydict() == {"row": FINISHED}
    assert mlx_bulk.results(stopped, errors=True, partial=True)["row"].to_pylist() == [6]
    assert mlx_bulk.dataset(stopped, partial=True).to_table(columns=["row"])["row"].to_pylist() == FINISHED


def test_a_shard_whose_errors_are_done_again_is_read_whole_and_once(path: Path):
    with RunDir.open(path) as run:
        work(run, range(2), [failure(2, "no"), failure(3, "no")])
    with RunDir.open(path) as run:
        run.bind(RUN)
        recovered = run.recover(Layout(8, 4), SCHEMA, retry_errors=True)
        writer = Writer(run, run.identity, SCHEMA, Layout(8, 4), recovered, 0.0)
        writer.admit(2, 1)
        writer.add(2, 0, record(2, 0))
        writer.close()
    assert mlx_bulk.results(path)["row"].to_pylist() == [0, 1]
    assert mlx_bulk.results(path, partial=True)["row"].to_pylist() == [0, 1, 2]
    assert mlx_bulk.results(path, errors=True, partial=True).num_rows == 0


def test_a_complete_run_is_the_same_either_way(bench: Bench):
    run = bench.run().output
    assert mlx_bulk.results(run, partial=True) == mlx_bulk.results(run)
    assert mlx_bulk.dataset(run, partial=True).to_table() == mlx_bulk.dataset(run).to_table()
