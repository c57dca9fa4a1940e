"""Tests the writer's thread: what it keeps, how it bounds batches, and how its errors reach the caller."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store import row_order, writer
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.results import read_results
from mlx_bulk.runner.store.writer import Writer

SCHEMA = pa.schema([("row", pa.int64()), ("key", pa.string()), ("sample", pa.int32()), ("completion", pa.large_string())])
ROWS, PER_SHARD = 10, 4
PATIENCE = 30.0  # seconds after which a test that waits for another thread has failed
RECORD: dict[str, Any] = {"completion": "x" * 100}


def failure(row: int, message: str = "no") -> Failure:
    return Failure(row, f"k{row}", None, "generate", "RowError", message, "{}")


def open_writer(run: RunDir, rows: int = ROWS, per_shard: int = PER_SHARD) -> Writer:
    """A writer that syncs on commits and on close alone."""
    return Writer(run, run.identity, SCHEMA, Layout(rows, per_shard), run.recover(Layout(rows, per_shard), SCHEMA), fsync_seconds=3600.0)


def test_flush_decides_what_close_keeps(tmp_path: Path):
    for flush in (False, True):
        with RunDir.open(tmp_path / "run") as run:
            out = open_writer(run)
            out.add(0, 0, RECORD)
            out.fail(failure(1, message="\ud800"))
            out.close(flush=flush)
            out.close()
            recovered = run.recover(Layout(ROWS, PER_SHARD), SCHEMA)
            assert (recovered.records, recovered.errors) == (int(flush), int(flush))


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = 2500
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run, rows=rows, per_shard=rows)
        for row in reversed(range(rows)):
            out.admit(row, 1)
            out.add(row, 0, RECORD)
        out.finish()
        assert (out.rows, out.records, out.errors) == (rows, rows, 0)
    assert [batch.num_rows for batch in read_results(tmp_path / "run")] == [1024, 1024, 452]
    assert [row for batch in read_results(tmp_path / "run", ["row"]) for row in batch.column(0).to_pylist()] == list(range(rows))
    monkeypatch.setattr(row_order, "_BATCH_BYTES", 1 << 14)
    with RunDir.open(tmp_path / "small") as run:
        out = open_writer(run, rows=400, per_shard=400)
        for row in range(400):
            out.admit(row, 1)
            out.add(row, 0, RECORD)
        out.finish()
    assert max(batch.num_rows for batch in read_results(tmp_path / "small")) == 128


def test_errors_in_the_thread_reach_the_caller(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.add(0, 0, RECORD)
        out.add(0, 0, RECORD)
        with pytest.raises(ValueError, match="row 0, sample 0 is finished already"):
            out.close()
        with pytest.raises(ValueError, match="row 0, sample 0"):
            out.add(1, 0, RECORD)
        out = open_writer(run)
        out.admit(ROWS, 1)
        with pytest.raises(ValueError, match="row 10 is not to be done"):
            out.close()


def test_a_row_with_a_recorded_sample_cannot_fail_whole(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.add(0, 1, RECORD)
        out.fail(failure(0))
        with pytest.raises(ValueError, match="row 0 cannot fail whole: it has finished samples"):
            out.close()


def test_an_unfinished_run_is_not_called_complete(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        out.fail(failure(0))
        with pytest.raises(RuntimeError, match="3 shards are not complete, the first is 0"):
            out.finish()
        assert read_commits(run).closing is None


def test_a_journal_that_lost_rows_is_not_committed(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run, rows=2, per_shard=2)
        out.fail(failure(0))
        out.close()
        out = open_writer(run, rows=2, per_shard=2)
        run.journal_of(0).write_bytes(b"")
        out.fail(failure(1))
        with pytest.raises(RunDirError, match="0 records and 2 errors were written, 0 and 0 read back"):
            out.close()
        assert read_commits(run).commits == {}


def test_rows_recovered_as_failed_may_be_admitted_before_and_after_their_shard_is_committed(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run, rows=2, per_shard=2)
        out.fail(failure(0))
        out.close()
        out = open_writer(run, rows=2, per_shard=2)
        out.admit(1, 1)
        out.add(1, 0, RECORD)
        out.admit(0, 1)
        out.finish()
        assert (out.rows, out.records, out.errors) == (2, 1, 1)


def test_a_shard_that_was_killed_before_its_commit_needs_no_more_than_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with RunDir.open(tmp_path / "run") as run:
        with monkeypatch.context() as patch:
            patch.setattr(writer, "commit_shard", lambda *arguments: None)
            out = open_writer(run, rows=1, per_shard=1)
            out.fail(failure(0))
            out.close()
        assert read_commits(run).commits == {}
        out = open_writer(run, rows=1, per_shard=1)
        out.admit(0, 1)
        out.finish()
        assert read_commits(run).commits[0].errors == 1


def test_a_flush_is_told_when_all_that_came_before_is_in_the_journal(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        out, flushed = open_writer(run), threading.Event()
        out.add(0, 0, RECORD)
        out.flush(flushed.set)
        assert flushed.wait(PATIENCE)
        assert run.recover(Layout(ROWS, PER_SHARD), SCHEMA).records == 1
        assert out.running
        out.close(flush=False)
        assert (out.running, out.broken) == (False, False)


def test_the_first_save_imports_nothing(tmp_path: Path):
    """A child that has no pandas yet makes a writer and waits for its thread: what pyarrow imports late is there then."""
    child = (
        "import sys, threading; from mlx_bulk.runner.store import writer as w; from mlx_bulk.runner.store.paths import RunPaths; "
        "from mlx_bulk.runner.core.shard_layout import Layout; from mlx_bulk.runner.store.recovery import Recovered; import pyarrow as pa; "
        "from pathlib import Path; r = Recovered(frozenset(), {}, {}, {}, {}, 0, 0, 0); before = set(sys.modules); "
        f"one = w.Writer(RunPaths(Path({str(tmp_path)!r})), '', pa.schema([('row', pa.int64())]), Layout(1, 1), r, 1.0); one.wait(); "
        "from mlx_bulk.runner.store.arrow_builder import record_batch; began = set(sys.modules); "
        "record_batch(pa.schema([('row', pa.int64())]), [{'row': 1}]); "
        "print(sorted(set(sys.modules) - began)); one.close()"
    )
    assert subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("committing", [True, False])
def test_a_journal_that_is_removed_under_the_run_is_named(tmp_path: Path, whole: bool, committing: bool):
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        for row in range(4):
            out.admit(row, 1)
        out.add(0, 0, RECORD)
        saved = threading.Event()
        out.flush(saved.set)
        assert saved.wait(PATIENCE)
        folder = run.journal_of(0).parent
        shutil.rmtree(folder) if whole else run.journal_of(0).unlink()
        for row in range(1, 4 if committing else 2):
            out.add(row, 0, RECORD)
        with pytest.raises(RunDirError, match=r"journal/?\S* was removed while the run was going on, .* the same command does them again"):
            out.close()
    with RunDir.open(tmp_path / "run") as run:
        out = open_writer(run)
        for row in range(ROWS):
            out.admit(row, 1)
            out.add(row, 0, RECORD)
        out.finish()
        assert out.records == ROWS
