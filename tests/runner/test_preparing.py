"""Rows to windows of requests and outcomes to the writer, on a job that needs neither model nor tokenizer."""

import json
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.errors import DataError, RowError
from mlx_bulk.runner.job import Runs
from mlx_bulk.runner.ledger import Ledger
from mlx_bulk.runner.prefill import Setup, Wanted
from mlx_bulk.runner.preparing import WINDOW_ROWS, Desk
from mlx_bulk.runner.records import AnyRequest, BadRow, Failure, Generate, Generated, Outcome, Prompt, Request, Row, Sample, Sampling
from mlx_bulk.runner.recovery import Recovered

PATIENCE = 30.0  # seconds after which a test that waits for another thread has failed


class OneColumn:
    """A job whose rows say how many samples they want; a negative number fails the row."""

    wanted, samples = Wanted(), None
    schema = pa.schema([("row", pa.int64()), ("sample", pa.int32())])

    def requests(self, row: Row) -> list[Request]:
        n = row.columns["n"]
        if n < 0:
            raise RowError("template", f"{n} samples")
        ids = np.array([1], np.int32)
        return [Request(row.position, Prompt("", ids, ids), Generate(Sampling(), tuple(Sample(i, i) for i in range(n))))]

    def record(self, row: Row, request: Request, outcome: Outcome) -> dict[str, Any]:
        return {"row": row.position}

    def engine(self, setup: Setup, reference: Setup | None) -> Runs:
        raise AssertionError("not asked for here")

    def statistics(self, run: Path) -> pa.Table:
        raise AssertionError("not asked for here")

    def closing(self, statistics: pa.Table) -> str:
        raise AssertionError("not asked for here")


class Written:
    """Stands where the writer does, and keeps what it is told."""

    def __init__(self) -> None:
        self.admitted: dict[int, int] = {}
        self.added: list[tuple[int, int]] = []
        self.failed: list[Failure] = []
        self.flushed: list[int] = []

    def admit(self, row: int, samples: int) -> None:
        assert row not in self.admitted
        self.admitted[row] = samples

    def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
        assert self.admitted[row] > sample
        self.added.append((row, sample))

    def fail(self, failure: Failure) -> None:
        self.failed.append(failure)

    running, broken = True, False

    def flush(self, told: Callable[[], None]) -> None:
        self.flushed.append(len(self.added))
        told()


def recovered(done: dict[int, Ledger] | None = None) -> Recovered:
    return Recovered(frozenset(), done or {}, {}, {}, {}, 0, 0, 0)


def ledger_of(samples: dict[int, set[int]], failed: Collection[int] = ()) -> Ledger:
    """What is recorded of the first shard: samples of rows, and rows that failed whole."""
    ledger = Ledger(0, 8)
    for row, sample in ((row, sample) for row, those in samples.items() for sample in those):
        ledger.add_result(row, sample)
    for row in failed:
        ledger.add_error(row, None)
    return ledger


def rows_of(*samples: int) -> list[Row | BadRow]:
    return [Row(position, f"key {position}", {"n": n}) for position, n in enumerate(samples)]


def desk_of(
    rows: Iterator[Row | BadRow] | list[Row | BadRow],
    written: Any,
    done: dict[int, Ledger] | None = None,
    per_shard: int = 8,
    check: Callable[[AnyRequest], str | None] = lambda _: None,
    **settings: Any,
) -> Desk:
    flags: dict[str, Any] = {"fail_fast": False, "whole_shards": False, **settings}
    return Desk(OneColumn(), iter(rows), written, recovered(done), per_shard, check, lambda: False, **flags)


def outcome(row: int, sample: Sample) -> Generated:
    empty = np.zeros(0, np.float32)
    return Generated(row, sample, np.zeros(0, np.int32), Scores(empty), empty, "stop", None, None)


def drive(desk: Desk) -> list[list[int]]:
    """Answers all that is asked, as the engine does; the rows of each window."""
    windows: list[list[int]] = []
    try:
        while (window := desk.next_window(True)) is not None:
            windows.append([request.row for request in window])
            for request in window:
                assert isinstance(request, Request)
                for sample in request.work.samples:
                    desk.put(outcome(request.row, sample))
    finally:
        desk.close()
    return windows


@settings(deadline=None)  # two threads a case
@given(st.lists(st.integers(-1, 3).filter(bool), max_size=30), st.integers(1, 9))
def test_each_sample_is_recorded_once_and_bad_rows_fail_once(samples: list[int], per_shard: int):
    written = Written()
    drive(desk_of(rows_of(*samples), written, per_shard=per_shard))
    assert sorted(written.added) == [(row, sample) for row, n in enumerate(samples) for sample in range(n)]
    assert written.admitted == {row: n for row, n in enumerate(samples) if n > 0}
    assert [failure.row for failure in written.failed] == [row for row, n in enumerate(samples) if n < 0]


def test_windows_end_with_shards():
    count = 2 * WINDOW_ROWS + 5
    windows = drive(desk_of(rows_of(*[1] * count), Written(), per_shard=WINDOW_ROWS // 2))
    assert [len(window) for window in windows] == [WINDOW_ROWS, WINDOW_ROWS, 5]
    # Whole shards are run shard by shard: what is in a batch then does not hang on what is around.
    windows = drive(desk_of(rows_of(*[1] * 20), Written(), per_shard=8, whole_shards=True))
    assert [len(window) for window in windows] == [8, 8, 4]


def test_failures_carry_stage_key_and_row():
    written = Written()
    rows: list[Row | BadRow] = [*rows_of(1, -1, 1), BadRow(3, "line 4: not valid JSON", "{oops", 4)]
    drive(desk_of(rows, written, check=lambda request: "too large" if request.row == 2 else None))
    by_row = {failure.row: failure for failure in written.failed}
    assert [(by_row[i].stage, by_row[i].key, by_row[i].sample, by_row[i].message) for i in (1, 2, 3)] == [
        ("template", "key 1", None, "-1 samples"),
        ("too_long", "key 2", None, "too large"),
        ("read", None, None, "line 4: not valid JSON"),
    ]
    assert (json.loads(by_row[1].input), by_row[3].input) == ({"n": -1}, "{oops")


def test_a_sample_that_fails_in_the_engine_gets_its_row_s_key():
    written = Written()
    desk = desk_of(rows_of(2), written)
    window = desk.next_window(True)
    assert window is not None
    desk.put(Failure(0, None, 1, "generate", "NotANumber", "NaN", ""))
    desk.put(outcome(0, Sample(0, 0)))
    desk.close()
    (failure,) = written.failed
    assert (failure.key, failure.sample, json.loads(failure.input)) == ("key 0", 1, {"n": 2})
    assert written.added == [(0, 0)]


def test_what_is_recorded_already_is_not_asked_again():
    done = {0: ledger_of({0: {0, 2}, 1: {0}}, failed={2})}
    written = Written()
    windows = drive(desk_of(rows_of(3, 1, -1, 2), written, done))
    assert windows == [[0, 3]]
    assert sorted(written.added) == [(0, 1), (3, 0), (3, 1)]
    # Rows with nothing left are admitted all the same: their shard waits for them.
    assert written.admitted == {0: 3, 1: 1, 2: 1, 3: 2}
    assert written.failed == []


def test_whole_shards_run_again_what_is_recorded_but_do_not_record_it_twice():
    done = {0: ledger_of({0: {0, 2}, 1: {0}})}
    written = Written()
    windows = drive(desk_of(rows_of(3, 1, 2), written, done, whole_shards=True))
    assert windows == [[0, 1, 2]]
    assert sorted(written.added) == [(0, 1), (2, 0), (2, 1)]


def test_fail_fast_names_row_key_and_reason():
    desk = desk_of(rows_of(1, -1, 1), Written(), fail_fast=True)
    with pytest.raises(DataError, match=r"on_error: fail, and row 1 \(key key 1\) failed at template: -1 samples"):
        drive(desk)


def test_what_reading_raises_comes_out_of_close():
    def rows() -> Iterator[Row | BadRow]:
        yield from rows_of(1)
        raise DataError("rows.jsonl changed")

    with pytest.raises(DataError, match=r"rows\.jsonl changed"):
        drive(desk_of(rows(), Written()))


def test_what_the_writer_raises_comes_out_and_nobody_waits():
    class Broken(Written):
        def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
            raise OSError("disk is gone")

    # More outcomes than the queue between the threads holds: the model's thread must not wait for one that has ended.
    with pytest.raises(OSError, match="disk is gone"):
        drive(desk_of(rows_of(*[1] * 5000), Broken()))


def test_closing_early_records_what_was_put_and_stops_reading():
    begun, read = threading.Event(), [0]

    def endless() -> Iterator[Row | BadRow]:
        while True:
            yield Row(read[0], str(read[0]), {"n": 1})
            read[0] += 1
            if read[0] > 2 * WINDOW_ROWS:
                begun.set()

    written = Written()
    desk = desk_of(endless(), written)
    window = desk.next_window(True)
    assert window is not None
    desk.put(outcome(window[0].row, Sample(0, 0)))
    assert begun.wait(PATIENCE)
    desk.close()
    assert written.added == [(window[0].row, 0)]
    assert read[0] < 5 * WINDOW_ROWS


def test_a_shard_without_requests_does_not_shift_the_windows_behind_it():
    """All rows of the first shard fail; the next shard is one window, as it is when the run goes on after it."""
    windows = drive(desk_of(rows_of(*[-1] * 4, *[1] * 4, *[1] * 4), Written(), per_shard=4, whole_shards=True))
    assert windows == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_less_memory_than_before_fails_only_what_is_not_recorded():
    """Samples 0 and 2 of row 0 are recorded, all of row 1; this session has room for neither row."""
    done = {0: ledger_of({0: {0, 2}, 1: {0}})}
    written = Written()
    assert drive(desk_of(rows_of(3, 1, 1), written, done, check=lambda _: "too large")) == []
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
    assert drive(desk_of(rows, written, {0: ledger}, whole_shards=whole_shards)) == []
    assert [(each.row, each.sample) for each in written.failed] == missing
    assert {each.row: (each.stage, each.key, each.input) for each in written.failed}[0] == ("template", "key 0", '{"n": -1}')
    assert all(each.input == "{oops" for each in written.failed if each.row == 1)
    assert written.admitted == {row: 2 + sum(place[0] == row for place in missing) for row in (0, 1)}


def test_rows_that_come_first_are_windows_of_their_own_and_come_once():
    rows = rows_of(1, 1, 2, 1, 1, 1)
    written = Written()
    windows = drive(desk_of(rows, written, per_shard=2, first=[[rows[4], rows[1]], [], [rows[2]]]))
    assert windows == [[4, 1], [], [2], [0, 3, 5]]
    assert sorted(written.added) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0)]


def test_a_fatal_row_is_quarantined_whole_or_by_the_samples_that_are_left():
    written = Written()
    rows = rows_of(1, 2, 3)
    fatal = {1: "the process died of it", 2: "of this too"}
    assert drive(desk_of(rows, written, {0: ledger_of({2: {1}})}, first=[[rows[1], rows[2]]], fatal=fatal)) == [[], [0]]
    assert [(each.row, each.sample, each.stage, each.error, each.message) for each in written.failed] == [
        (1, None, "generate", "EngineAborted", "the process died of it"),
        (2, 0, "generate", "EngineAborted", "of this too"),
        (2, 2, "generate", "EngineAborted", "of this too"),
    ]


def test_a_flush_returns_behind_what_was_put_before_it():
    written = Written()
    desk = desk_of(rows_of(1, 1, 1), written)
    window = desk.next_window(True)
    assert window is not None
    for request in window[:2]:
        desk.put(outcome(request.row, Sample(0, 0)))
    assert desk.flush()
    assert written.flushed == [2]
    desk.close()


def test_a_flush_does_not_wait_for_a_disk_that_has_failed():
    class Broken(Written):
        def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
            raise OSError("disk is gone")

    desk = desk_of(rows_of(1), Broken())
    assert desk.next_window(True) is not None
    desk.put(outcome(0, Sample(0, 0)))
    assert not desk.flush()
    with pytest.raises(OSError, match="disk is gone"):
        desk.close()
