"""Tests what is known of each worker of a run, while it works and for those who read workers.json."""

from pathlib import Path

import pytest
from mlx_bulk.runner.files.checked_json import read_document
from mlx_bulk.runner.leasing.lease_log import LeaseLog
from mlx_bulk.runner.leasing.open_lease import OpenLease
from mlx_bulk.runner.leasing.row_set import RowSet
from mlx_bulk.runner.leasing.worker_table import WorkerTable
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.runs.worker_parts import worker_parts


def test_a_worker_in_its_first_lease_is_known(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        table = WorkerTable(run)
        table.hear("mac-1")
        table.look(["mac-1"], {"mac-1"}, 0.0)
        table.note_rows("mac-1", 30)
        table.note_memory("mac-1", 7 << 30)
        table.look(["mac-1"], {"mac-1"}, 10.0)
        table.note()
        (shown,) = table.shown()
        (part,) = worker_parts(run)
    assert (shown["worker"], shown["rows"], shown["rows_per_second"], shown["peak_memory_bytes"]) == ("mac-1", 30, 3.0, 7 << 30)
    assert (part.worker, part.rows, part.rows_per_second, part.peak_memory_bytes) == ("mac-1", 30, 3.0, 7 << 30)
    assert part.seen.isoformat() == shown["last_seen"]


def test_time_without_rows_is_in_no_pace_and_the_pace_of_progress_is_the_last_minutes(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        table = WorkerTable(run)
        for second in range(200):
            table.look(["mac-1"], {"mac-1"} if second <= 100 else set(), float(second))
            table.note_rows("mac-1", 2 if second < 100 else 0)
        table.note()
        assert [each["rows_per_second"] for each in table.shown()] == [0.0]
        assert [part.rows_per_second for part in worker_parts(run)] == [2.0]


def test_ended_leases_count_where_the_table_does_not_tell_of_their_worker(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        table = WorkerTable(run)
        table.note_rows("mac-1", 30)
        table.note()
        for worker, rows in (("mac-1", 30), ("mac-1", 20), ("mac-2", 4)):  # of the 20, some were done before
            run.add_lease({"worker": worker, "shard": 0, "rows": rows, "seconds": 1.0})
        assert [(part.worker, part.rows) for part in worker_parts(run)] == [("mac-1", 30), ("mac-2", 4)]


def test_rows_that_the_table_has_not_told_of_when_the_driver_died_count_once(tmp_path: Path):
    """workers.json is some seconds old then. A row that was sent twice counts once."""
    with RunDir.open(tmp_path / "run") as run:
        table, log = WorkerTable(run), LeaseLog(run)
        table.note_rows("mac-1", 3)
        table.note()
        for shard, positions in ((0, {0, 1, 2}), (0, {2, 3, 7}), (1, {0, 1})):
            log.note_done(OpenLease("1", "mac-1", RowSet(shard, []), 1.0), positions, 11.0)
        log.note_done(OpenLease("2", "mac-2", RowSet(1, []), 1.0), {5}, 11.0)
        found = [(part.worker, part.rows) for part in worker_parts(run)]
        WorkerTable(run).note()  # the next start
        assert [part["rows"] for part in read_document(run.workers_now)["workers"]] == [7, 1]
    assert found == [("mac-1", 7), ("mac-2", 1)]


def test_the_next_start_goes_on_from_what_the_last_one_has_noted(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        first = WorkerTable(run)
        first.note_rows("mac-1", 30)
        first.note_memory("mac-1", 5)
        first.note()
        second = WorkerTable(run)
        second.note_rows("mac-1", 12)
        second.note_memory("mac-1", 4)
        second.note_rows("mac-2", 1)
        second.note()
        found = [(part.worker, part.rows, part.peak_memory_bytes) for part in worker_parts(run)]
    assert found == [("mac-1", 42, 5), ("mac-2", 1, None)]


@pytest.mark.parametrize("content", [b"", b'{"workers": [1]}'])
def test_a_damaged_file_is_left_out(tmp_path: Path, content: bytes):
    with RunDir.open(tmp_path / "run") as run:
        run.add_lease({"worker": "mac-1", "shard": 0, "rows": 20, "seconds": 1.0})
        run.workers_now.write_bytes(content)
        assert [part.rows for part in worker_parts(run)] == [20]
