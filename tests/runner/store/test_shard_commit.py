"""Tests how a finished shard becomes parts: what is checked before, and what is refused."""

import errno
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlx_bulk.runner.core.errors import OutOfRoom, RunDirError
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.files import disk_space
from mlx_bulk.runner.store import journal, writer
from mlx_bulk.runner.store.arrow_builder import record_batch
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.journal import Header
from mlx_bulk.runner.store.writer import Writer

from ..support.sessions import PER_SHARD, ROWS, SCHEMA, check, failure, flip, opened, record, work


class Usage(NamedTuple):
    """The result of ``shutil.disk_usage``."""

    total: int
    used: int
    free: int


def test_a_part_without_room_is_not_written_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The volume has room for journals, and not for the spare beside a part: also what other shards hold is saved."""
    path = tmp_path / "run"
    with opened(path) as run, monkeypatch.context() as patch:
        out = Writer(run, run.identity, SCHEMA, Layout(ROWS, PER_SHARD), run.recover(Layout(ROWS, PER_SHARD), SCHEMA), fsync_seconds=3600)
        patch.setattr(disk_space.shutil, "disk_usage", lambda volume: Usage(100 << 20, 99 << 20, 1 << 20))
        out.admit(8, 2)
        out.add(8, 0, record(8, 0))
        for row in range(PER_SHARD):
            out.fail(failure(row))
        with pytest.raises(OutOfRoom) as caught:
            out.close()
    message = str(caught.value)
    assert message.startswith(f"{path}/results/part-00000000.arrow: the volume ")
    needed = r" has 1\.0 MB free, needed are [\d.]+ kB for this file and 8\.4 MB in reserve, for what else the run writes\. "
    assert re.search(needed, message)
    assert message.endswith("What was finished is safe: make room there, then continue with the same command (without --overwrite).")
    assert list(path.glob("*/*part-*")) == []
    with opened(path) as run:
        recovered = run.recover(Layout(ROWS, PER_SHARD), SCHEMA)
        assert (recovered.records, recovered.errors) == (1, PER_SHARD)
        assert recovered.done[0].left == 0
        out = Writer(run, run.identity, SCHEMA, Layout(ROWS, PER_SHARD), recovered, fsync_seconds=3600)
        out.close()
        assert set(read_commits(run).commits) == {0}


def test_room_for_the_old_generation_too_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run"
    work(path, rows=6)
    needed: list[int] = []
    monkeypatch.setattr("mlx_bulk.runner.store.shard_commit.require_room", lambda part, size: needed.append(size))
    base = (path / "results/part-00000001.arrow").stat().st_size
    work(path, rows=8)
    assert needed[0] > base


def test_lines_appended_before_an_error_are_not_appended_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Results reach the journal, the errors behind them do not: saving the rest writes the errors alone."""
    path = tmp_path / "run"
    with opened(path) as run, monkeypatch.context() as patch:
        out = Writer(run, run.identity, SCHEMA, Layout(ROWS, PER_SHARD), run.recover(Layout(ROWS, PER_SHARD), SCHEMA), fsync_seconds=3600)
        real, failed = journal.append, list[bytes]()

        def once(file: Path, kind: bytes, batch: Any) -> None:
            if kind == journal.ERRORS and not failed:
                failed.append(kind)
                raise OSError(errno.EIO, "Input/output error", str(file))
            real(file, kind, batch)

        patch.setattr(writer.journal, "append", once)
        out.admit(0, 2)
        out.add(0, 0, record(0, 0))
        out.fail(failure(2))
        with pytest.raises(OSError, match="Input/output error"):
            out.close()
        assert failed
        recovered = run.recover(Layout(ROWS, PER_SHARD), SCHEMA)
        assert (recovered.records, recovered.errors) == (1, 1)
    work(path)
    check(path)


def test_a_base_that_was_damaged_while_the_run_went_on_is_not_parsed(tmp_path: Path):
    path = tmp_path / "run"
    work(path, rows=6)
    with opened(path) as run:
        out = Writer(run, run.identity, SCHEMA, Layout(8, PER_SHARD), run.recover(Layout(8, PER_SHARD), SCHEMA), fsync_seconds=3600)
        flip(path / "results/part-00000001.arrow")
        for row in (6, 7):
            out.fail(failure(row))
        with pytest.raises(RunDirError, match=r"part-00000001\.arrow: is missing or damaged, and its shard builds on it"):
            out.close()
    assert {row for row, _ in work(path, rows=8, failing=frozenset({(2, None), (6, None), (7, None)}))} == {4, 5}
    check(path, rows=8, failing=frozenset({(2, None), (6, None), (7, None)}))


def test_a_row_and_sample_that_is_there_twice_is_not_committed(tmp_path: Path):
    path = tmp_path / "run"
    with opened(path) as run:
        twice = [{**record(0, 0), "row": 0, "sample": 0}, {**record(0, 1), "row": 0, "sample": 1}, {**record(0, 0), "row": 0, "sample": 0}]
        journal.begin(run.journal_of(0), Header(0, 1))
        journal.append(run.journal_of(0), journal.RESULTS, record_batch(SCHEMA, twice))
        out = Writer(run, run.identity, SCHEMA, Layout(1, PER_SHARD), run.recover(Layout(1, PER_SHARD), SCHEMA), fsync_seconds=3600)
        out.admit(0, 2)
        with pytest.raises(RunDirError, match=r"journal/00000000: holds a row and sample twice\. Remove this file"):
            out.close()
        assert read_commits(run).commits == {}
        run.journal_of(0).unlink()
    work(path, rows=1)
    check(path, rows=1)
