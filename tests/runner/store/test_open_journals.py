"""Tests committed shards that are reopened for more input or a retry: their parts stand until new ones exist."""

import os
from pathlib import Path

import pytest
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.journal import Header
from mlx_bulk.runner.store.paths import RunPaths

from ..support.reopened_runs import Parts, rows_read
from ..support.reopened_runs import whole as whole
from ..support.sessions import PER_SHARD, ROWS, SCHEMA, check, content, flip, forks, kills, opened, orphans, work


def test_an_extended_input_keeps_the_finished_rows_of_the_last_shard(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path, rows=6)
    check(path, rows=6)
    before = content(path)
    with opened(path) as run:
        recovered = run.recover(Layout(ROWS, PER_SHARD), SCHEMA)
    assert recovered.committed == {0}
    assert recovered.headers == {1: Header(1, 2, base=1)}
    assert [recovered.done[1].is_resolved(row) for row in range(4, 8)] == [True, True, False, False]
    assert (recovered.rows, recovered.records, recovered.errors) == (6, 10, 1)
    assert content(path) == before  # until the new generation is there, the old one is what is read
    assert rows_read(path) == (10, 1)
    assert [row for row, _ in work(path)] == [6, 6, 7, 7, 8, 8, 9, 9]
    check(path)
    assert content(path) == whole
    assert [file.name for file in sorted((path / "results").iterdir())] == [
        "part-00000000.arrow",
        "part-00000001.g2.arrow",
        "part-00000002.arrow",
    ]


@pytest.mark.slow
@forks
def test_killed_between_any_two_steps_of_an_extension(tmp_path: Path):
    work(tmp_path / "whole", rows=8)
    whole = content(tmp_path / "whole")
    for path in kills(tmp_path, lambda path: work(path, rows=6), lambda path: work(path, rows=8, shuffle=5), least=15):
        assert rows_read(path)[0] >= 10
        work(path, rows=8, shuffle=6)
        check(path, rows=8)
        assert content(path) == whole
        assert orphans(path) == []


def test_each_extension_of_a_part_has_a_new_name(tmp_path: Path, whole: Parts):
    for rows in (5, 6, 7, 8, 10):
        work(tmp_path / "run", rows=rows)
        check(tmp_path / "run", rows=rows)
    assert content(tmp_path / "run") == whole
    assert (tmp_path / "run/results/part-00000001.g4.arrow").exists()


def test_a_base_that_was_damaged_is_done_again_and_what_continued_it_is_kept(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path, rows=6)
    did = work(path, stop_after=3)
    assert (path / "journal/00000001").exists()
    flip(path / "results/part-00000001.arrow")
    again = work(path)
    assert {row for row, _ in again} >= {4, 5}
    assert not set(did) & set(again)
    check(path)
    assert content(path) == whole


def test_the_base_of_a_reopened_shard_is_read_whatever_its_stamp_says(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path, rows=6)
    part = path / "results/part-00000001.arrow"
    found = part.stat()
    flip(part)
    os.utime(part, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert {row for row, _ in work(path)} >= {4, 5}
    check(path)
    assert content(path) == whole


def test_a_journal_that_continues_another_part_than_the_committed_one_goes(tmp_path: Path, whole: Parts, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    journal.begin(RunPaths(path).journal_of(0), Header(0, 3, base=2))
    work(path)
    assert "continues a part that is not the one committed; its rows are done again" in caplog.text
    check(path)
    assert content(path) == whole


def test_a_journal_that_its_commit_has_overtaken_goes_without_a_word(tmp_path: Path, whole: Parts, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    journal.begin(RunPaths(path).journal_of(0), Header(0, 1))
    work(path)
    assert caplog.text == ""
    check(path)
    assert content(path) == whole
    assert read_commits(RunPaths(path)).generations == {0: 1, 1: 1, 2: 1}


def test_an_empty_journal_of_a_committed_shard_goes_without_a_word(tmp_path: Path, whole: Parts, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path)
    (path / "journal/00000000").touch()
    assert work(path) == []
    assert caplog.text == ""
    check(path)
    assert content(path) == whole


def test_an_emptied_journal_of_an_open_shard_is_told(tmp_path: Path, whole: Parts, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "run"
    work(path, rows=4, stop_after=3)
    (path / "journal/00000000").write_bytes(b"")
    work(path)
    assert "does not begin as it was written; its rows are done again" in caplog.text
    check(path)
    assert content(path) == whole
