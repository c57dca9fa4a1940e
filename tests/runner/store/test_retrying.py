"""Tests a retry of errors: they move to the results or stay, and any start continues an interrupted retry."""

from pathlib import Path

import pytest
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.journal import Header
from mlx_bulk.runner.store.paths import RunPaths

from ..support.reopened_runs import Parts, rows_read
from ..support.reopened_runs import whole as whole
from ..support.sessions import FAILING, PER_SHARD, SCHEMA, Place, check, content, forks, kills, opened, orphans, work

NONE: frozenset[Place] = frozenset()


RETRIED = [(2, 0), (2, 1), (6, 1)]


@pytest.fixture(scope="module")
def flawless(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The parts of a run in which nothing failed."""
    path = tmp_path_factory.mktemp("flawless") / "run"
    work(path, failing=NONE)
    return content(path)


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
    found = journal.read_journal(path / "journal/00000001")
    assert found is not None
    assert found.header == Header(1, 2, base=1)
    assert sum(batch.num_rows for batch in found.errors) == 2
    again = work(path, retry=True, failing=NONE)
    assert set(did) & set(again) == {(6, 1), (7, 0)}
    assert (5, 1) in again
    check(path, failing=NONE)
    assert content(path) == flawless


@pytest.mark.slow
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


@pytest.mark.slow
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
    dropped = journal.read_journal(path / "journal/00000000")
    assert dropped is not None
    assert dropped.header == Header(0, 1, retry=1)
    failed_again = sum(batch.num_rows for batch in dropped.errors)
    with opened(path) as run:
        assert run.recover(Layout(4, PER_SHARD), SCHEMA).errors == failed_again > 0
    work(path, rows=4, retry=True, failing=NONE)
    check(path, rows=4, failing=NONE)


def interrupted(*arguments: object) -> None:
    raise InterruptedError


@pytest.mark.slow
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
