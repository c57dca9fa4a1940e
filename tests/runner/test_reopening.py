"""Committed shards that are reopened, for more input or for errors to be done again. Their parts stand until new ones are there."""

import os
from pathlib import Path

import pytest
from mlx_bulk.runner import journal
from mlx_bulk.runner.commits import read_commits
from mlx_bulk.runner.journal import Header
from mlx_bulk.runner.parts import read_errors, read_results
from mlx_bulk.runner.paths import RunPaths

from .sessions import FAILING, PER_SHARD, ROWS, SCHEMA, Place, check, content, flip, forks, kills, opened, orphans, work

Parts = dict[tuple[str, int], str]
NONE: frozenset[Place] = frozenset()
RETRIED = [(2, 0), (2, 1), (6, 1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The parts of a run that nothing interrupted, with its errors."""
    path = tmp_path_factory.mktemp("whole") / "run"
    work(path)
    return content(path)


@pytest.fixture(scope="module")
def flawless(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The parts of a run in which nothing failed."""
    path = tmp_path_factory.mktemp("flawless") / "run"
    work(path, failing=NONE)
    return content(path)


def rows_read(path: Path) -> tuple[int, int]:
    return sum(batch.num_rows for batch in read_results(path)), sum(batch.num_rows for batch in read_errors(path))


# --------------------------------------------------------------------------------------------------------------- extension


def test_an_extended_input_keeps_the_finished_rows_of_the_last_shard(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path, rows=6)
    check(path, rows=6)
    before = content(path)
    with opened(path) as run:
        recovered = run.recover(ROWS, PER_SHARD, SCHEMA)
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


def test_extended_again_and_again_each_generation_has_a_name_of_its_own(tmp_path: Path, whole: Parts):
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


# ------------------------------------------------------------------------------------------------------------------- retry


def test_errors_of_a_complete_run_are_done_again_and_move(tmp_path: Path, flawless: Parts):
    path = tmp_path / "run"
    work(path)
    assert work(path, retry=True, failing=NONE) == RETRIED
    check(path, failing=NONE)
    assert content(path) == flawless


def test_without_errors_there_is_nothing_to_retry(tmp_path: Path):
    path = tmp_path / "run"
    work(path, failing=NONE)
    before = content(path), (path / "commits.jsonl").read_bytes()
    assert work(path, retry=True, failing=NONE) == []
    assert (content(path), (path / "commits.jsonl").read_bytes()) == before


def test_rows_that_fail_again_stay_quarantined(tmp_path: Path, whole: Parts):
    path = tmp_path / "run"
    work(path)
    assert work(path, retry=True) == [(2, None), (6, 1)]
    check(path)
    assert content(path) == whole
    assert work(path) == []


def test_only_the_sample_that_failed_is_done_again(tmp_path: Path, flawless: Parts):
    path = tmp_path / "run"
    work(path, failing=frozenset({(5, 0), (9, 1)}))
    assert work(path, retry=True, failing=frozenset({(5, 0)})) == [(5, 0), (9, 1)]
    check(path, failing=frozenset({(5, 0)}))
    assert work(path, retry=True, failing=NONE) == [(5, 0)]
    check(path, failing=NONE)
    assert content(path) == flawless


def test_errors_in_the_journal_of_an_open_shard_are_done_again(tmp_path: Path, flawless: Parts):
    path = tmp_path / "run"
    did = work(path, stop_after=18, failing=FAILING | {(9, 1), (8, 0), (1, 1)})
    again = work(path, retry=True, failing=NONE)
    done_twice = set(did) & set(again)
    assert done_twice <= {(9, 1), (8, 0), (1, 1), (6, 1)}
    assert done_twice
    check(path, failing=NONE)
    assert content(path) == flawless


def test_a_retry_that_was_stopped_goes_on_without_being_asked_again(tmp_path: Path, flawless: Parts):
    path = tmp_path / "run"
    work(path)
    assert len(work(path, retry=True, failing=NONE, stop_after=1)) == 1
    assert rows_read(path) == (17, 2) or rows_read(path) == (18, 1)
    assert len(work(path, failing=NONE)) == 2
    check(path, failing=NONE)
    assert content(path) == flawless


def test_a_retry_that_was_stopped_may_be_retried(tmp_path: Path, flawless: Parts):
    path = tmp_path / "run"
    work(path)
    work(path, retry=True, failing=frozenset({(2, 0), (6, 1)}), stop_after=2)
    work(path, retry=True, failing=NONE)
    check(path, failing=NONE)
    assert content(path) == flawless


def test_an_extension_that_was_stopped_may_be_retried(tmp_path: Path, flawless: Parts):
    """Shard 1 has an error in its base and two in its journal; they are done again, nothing else is."""
    path = tmp_path / "run"
    work(path, rows=6, failing=frozenset({(5, 1)}))
    did = work(path, failing=frozenset({(6, 1), (7, 0)}), stop_after=5, shuffle=2)
    found = journal.read(path / "journal/00000001")
    assert found is not None
    assert found.header == Header(1, 2, base=1)
    assert sum(batch.num_rows for batch in found.errors) == 2
    again = work(path, retry=True, failing=NONE)
    assert set(did) & set(again) == {(6, 1), (7, 0)}
    assert (5, 1) in again
    check(path, failing=NONE)
    assert content(path) == flawless


@forks
def test_killed_between_any_two_steps_of_a_retry_and_retried(tmp_path: Path):
    """A row that had failed whole, and a sample of another, in one shard."""
    work(tmp_path / "flawless", rows=4, failing=NONE)
    flawless, failing = content(tmp_path / "flawless"), frozenset[Place]({(2, None), (3, 1)})

    def retry(path: Path) -> list[Place]:
        return work(path, rows=4, retry=True, failing=NONE, shuffle=5)

    for path in kills(tmp_path, lambda path: work(path, rows=4, failing=failing), retry, least=15):
        assert rows_read(path) in ((5, 2), (8, 0))
        retry(path)
        check(path, rows=4, failing=NONE)
        assert content(path) == flawless
        assert orphans(path) == []


@forks
def test_killed_between_any_two_steps_of_a_retry_and_continued(tmp_path: Path, whole: Parts, flawless: Parts):
    """The plain command finishes it, in all shards, from the moment in which it is noted; before that nothing has changed."""
    for path in kills(tmp_path, work, lambda path: work(path, retry=True, failing=NONE, shuffle=5), least=25, stride=2):
        log = read_commits(RunPaths(path))
        begun = bool(log.retries) or max(log.generations.values()) > 1
        work(path, failing=NONE)
        check(path, failing=NONE if begun else FAILING)
        assert content(path) == (flawless if begun else whole)


def test_a_retry_is_noted_before_the_first_shard_is_reopened(tmp_path: Path, flawless: Parts, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run"
    work(path)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "begin", interrupted)
        with pytest.raises(InterruptedError):
            work(path, retry=True)
    log = read_commits(RunPaths(path))
    assert (log.retries, log.closing) == ({0: 1, 1: 1}, None)
    assert not list(path.glob("journal/*"))
    assert work(path, failing=NONE) == RETRIED  # nobody asked again
    check(path, failing=NONE)
    assert content(path) == flawless


def test_a_retry_cut_short_in_an_open_shard_is_finished_and_what_fails_in_it_is_not_retried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, failing = tmp_path / "run", frozenset[Place]({(0, 1), (1, None)})
    work(path, rows=4, failing=failing, stop_after=6)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "rewrite", interrupted)
        with pytest.raises(InterruptedError):
            work(path, rows=4, retry=True, failing=failing)
    assert set(work(path, rows=4, failing=failing, stop_after=2)) & failing
    dropped = journal.read(path / "journal/00000000")
    assert dropped is not None
    assert dropped.header == Header(0, 1, retry=1)
    failed_again = sum(batch.num_rows for batch in dropped.errors)
    with opened(path) as run:
        assert run.recover(4, PER_SHARD, SCHEMA).errors == failed_again > 0
    work(path, rows=4, retry=True, failing=NONE)
    check(path, rows=4, failing=NONE)


def interrupted(*arguments: object) -> None:
    raise InterruptedError


@forks
def test_killed_while_the_errors_of_an_open_shard_are_dropped(tmp_path: Path):
    """Row 3 is not done; the retry rewrites the journal before it does it."""
    work(tmp_path / "flawless", rows=4, failing=NONE)
    flawless, failing = content(tmp_path / "flawless"), frozenset[Place]({(0, 1), (1, 0), (2, None)})

    def stopped(path: Path) -> None:
        work(path, rows=4, failing=failing, stop_after=5)
        assert (path / "journal/00000000").exists()

    for path in kills(tmp_path, stopped, lambda path: work(path, rows=4, retry=True, failing=NONE), least=12):
        work(path, rows=4, retry=True, failing=NONE)
        check(path, rows=4, failing=NONE)
        assert content(path) == flawless


# ---------------------------------------------------------------------------------------------------- journals of their own


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
