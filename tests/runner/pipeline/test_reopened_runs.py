"""Tests the I/O threads in a run that continues: recorded samples are not requested again, and a row that fails keeps them."""

from collections.abc import Collection

import pytest
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.store.shard_ledger import Ledger

from ..support.made_up_jobs import OneColumn, Written, drive, rows_of, threads_of


def ledger_of(samples: dict[int, set[int]], failed: Collection[int] = ()) -> Ledger:
    """Makes the ledger of the first shard from samples of rows, and rows that failed whole."""
    ledger = Ledger(0, 8)
    for row, sample in ((row, sample) for row, those in samples.items() for sample in those):
        ledger.add_result(row, sample)
    for row in failed:
        ledger.add_error(row, None)
    return ledger


def test_recorded_samples_are_not_requested_again():
    done = {0: ledger_of({0: {0, 2}, 1: {0}}, failed={2})}
    written = Written()
    windows = drive(threads_of(rows_of(3, 1, -1, 2), written, done))
    assert windows == [[0, 3]]
    assert sorted(written.added) == [(0, 1), (3, 0), (3, 1)]
    # Rows with nothing left are admitted all the same: their shard waits for them.
    assert written.admitted == {0: 3, 1: 1, 2: 1, 3: 2}
    assert written.failed == []


def test_whole_shards_run_again_what_is_recorded_but_do_not_record_it_twice():
    done = {0: ledger_of({0: {0, 2}, 1: {0}})}
    written = Written()
    windows = drive(threads_of(rows_of(3, 1, 2), written, done, whole_shards=True))
    assert windows == [[0, 1, 2]]
    assert sorted(written.added) == [(0, 1), (2, 0), (2, 1)]


def test_less_memory_than_before_fails_only_what_is_not_recorded():
    """Samples 0 and 2 of row 0 are recorded, all of row 1; this session has room for neither row."""
    done = {0: ledger_of({0: {0, 2}, 1: {0}})}
    written = Written()
    assert drive(threads_of(rows_of(3, 1, 1), written, done, check=lambda _: "too large")) == []
    assert written.admitted == {0: 3, 1: 1}
    assert [(failure.row, failure.sample, failure.stage) for failure in written.failed] == [(0, 1, "too_long"), (2, None, "too_long")]
    assert written.failed[0].key == "key 0"


@pytest.mark.parametrize(
    ("samples", "missing"),
    [(4, [(0, 1), (0, 3), (1, 2), (1, 3)]), (2, [(0, 1)]), (None, [(0, 1), (1, 2)])],
)
@pytest.mark.parametrize("whole_shards", [False, True])
def test_a_row_of_which_samples_are_recorded_never_fails_whole(
    samples: int | None, missing: list[tuple[int, int]], whole_shards: bool, monkeypatch: pytest.MonkeyPatch
):
    """Of rows 0 and 1 samples are recorded, row 2 is done; the input has changed since, and none of the three can be done any more."""
    monkeypatch.setattr(OneColumn, "samples", samples)
    ledger, written = ledger_of({0: {0, 2}, 1: {0, 1}, 2: {0}}), Written()
    ledger.admit(2, 1)
    rows: list[Row | BadRow] = [Row(0, "key 0", {"n": -1}), BadRow(1, "not valid JSON", "{oops", 2), Row(2, "key 2", {"n": -1})]
    assert drive(threads_of(rows, written, {0: ledger}, whole_shards=whole_shards)) == []
    assert [(each.row, each.sample) for each in written.failed] == missing
    assert {each.row: (each.stage, each.key, each.input) for each in written.failed}[0] == ("template", "key 0", '{"n": -1}')
    assert all(each.input == "{oops" for each in written.failed if each.row == 1)
    assert written.admitted == {row: 2 + sum(place[0] == row for place in missing) for row in (0, 1)}


def test_rows_that_come_first_are_windows_of_their_own_and_come_once():
    rows = rows_of(1, 1, 2, 1, 1, 1)
    written = Written()
    windows = drive(threads_of(rows, written, per_shard=2, isolated=[[rows[4], rows[1]], [], [rows[2]]]))
    assert windows == [[4, 1], [], [2], [0, 3, 5]]
    assert sorted(written.added) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0)]


def test_a_fatal_row_is_quarantined_whole_or_by_the_samples_that_are_left():
    written = Written()
    rows = rows_of(1, 2, 3)
    fatal = {1: "the process died of it", 2: "of this too"}
    assert drive(threads_of(rows, written, {0: ledger_of({2: {1}})}, isolated=[[rows[1], rows[2]]], fatal=fatal)) == [[], [0]]
    assert [(each.row, each.sample, each.stage, each.error, each.message) for each in written.failed] == [
        (1, None, "generate", "EngineAborted", "the process died of it"),
        (2, 0, "generate", "EngineAborted", "of this too"),
        (2, 2, "generate", "EngineAborted", "of this too"),
    ]
