"""Tests the I/O threads: rows to windows of requests, outcomes to the writer. The job needs no model and no tokenizer."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.requests import BadRow, Row, Sample
from mlx_bulk.runner.core.shard_layout import WINDOW_ROWS, Layout
from mlx_bulk.runner.pipeline.io_threads import row_windows

from ..support.made_up_jobs import Written, drive, outcome, rows_of, threads_of

PATIENCE = 30.0  # seconds after which a test that waits for another thread has failed


@settings(deadline=None)  # two threads a case
@given(st.lists(st.integers(-1, 3).filter(bool), max_size=30), st.integers(1, 9))
def test_each_sample_is_recorded_once_and_bad_rows_fail_once(samples: list[int], per_shard: int):
    written = Written()
    drive(threads_of(rows_of(*samples), written, per_shard=per_shard))
    assert sorted(written.added) == [(row, sample) for row, n in enumerate(samples) for sample in range(n)]
    assert written.admitted == {row: n for row, n in enumerate(samples) if n > 0}
    assert [failure.row for failure in written.failed] == [row for row, n in enumerate(samples) if n < 0]


def test_windows_end_with_shards():
    count = 2 * WINDOW_ROWS + 5
    windows = drive(threads_of(rows_of(*[1] * count), Written(), per_shard=WINDOW_ROWS // 2))
    assert [len(window) for window in windows] == [WINDOW_ROWS, WINDOW_ROWS, 5]
    # Whole shards are run shard by shard: what is in a batch then does not hang on what is around.
    windows = drive(threads_of(rows_of(*[1] * 20), Written(), per_shard=8, whole_shards=True))
    assert [len(window) for window in windows] == [8, 8, 4]


def test_failures_carry_stage_key_and_row():
    written = Written()
    rows: list[Row | BadRow] = [*rows_of(1, -1, 1), BadRow(3, "line 4: not valid JSON", "{oops", 4)]
    drive(threads_of(rows, written, check=lambda request: "too large" if request.row == 2 else None))
    by_row = {failure.row: failure for failure in written.failed}
    assert [(by_row[i].stage, by_row[i].key, by_row[i].sample, by_row[i].message) for i in (1, 2, 3)] == [
        ("template", "key 1", None, "-1 samples"),
        ("too_long", "key 2", None, "too large"),
        ("read", None, None, "line 4: not valid JSON"),
    ]
    assert (json.loads(by_row[1].input), by_row[3].input) == ({"n": -1}, "{oops")


def test_a_sample_that_fails_in_the_engine_gets_its_row_s_key():
    written = Written()
    threads = threads_of(rows_of(2), written)
    window = threads.next_window(True)
    assert window is not None
    threads.put(Failure(0, None, 1, "generate", "NotANumber", "NaN", ""))
    threads.put(outcome(0, Sample(0, 0)))
    threads.close()
    (failure,) = written.failed
    assert (failure.key, failure.sample, json.loads(failure.input)) == ("key 0", 1, {"n": 2})
    assert written.added == [(0, 0)]


def test_fail_fast_names_row_key_and_reason():
    threads = threads_of(rows_of(1, -1, 1), Written(), fail_fast=True)
    with pytest.raises(DataError, match=r"on_error: fail, and row 1 \(key key 1\) failed at template: -1 samples"):
        drive(threads)


def test_close_raises_the_errors_of_the_reader():
    def rows() -> Iterator[Row | BadRow]:
        yield from rows_of(1)
        raise DataError("rows.jsonl changed")

    with pytest.raises(DataError, match=r"rows\.jsonl changed"):
        drive(threads_of(rows(), Written()))


def test_the_writers_error_is_raised_and_no_thread_waits():
    class Broken(Written):
        def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
            raise OSError("disk is gone")

    # More outcomes than the queue between the threads holds: the model's thread must not wait for one that has ended.
    with pytest.raises(OSError, match="disk is gone"):
        drive(threads_of(rows_of(*[1] * 5000), Broken()))


def test_closing_early_records_what_was_put_and_stops_reading():
    begun, read = threading.Event(), [0]

    def endless() -> Iterator[Row | BadRow]:
        while True:
            yield Row(read[0], str(read[0]), {"n": 1})
            read[0] += 1
            if read[0] == 2 * WINDOW_ROWS:
                begun.set()

    written = Written()
    threads = threads_of(endless(), written)
    window = threads.next_window(True)
    assert window is not None
    threads.put(outcome(window[0].row, Sample(0, 0)))
    assert begun.wait(PATIENCE)
    threads.close()
    assert written.added == [(window[0].row, 0)]
    assert read[0] < 3 * WINDOW_ROWS


def test_one_window_is_made_ahead_of_the_model():
    """A further one would only take memory until the model takes the one before it."""
    second, more, read = threading.Event(), threading.Event(), [0]

    def endless() -> Iterator[Row | BadRow]:
        while True:
            yield Row(read[0], str(read[0]), {"n": 1})
            read[0] += 1
            if read[0] >= 16:
                (second if read[0] == 16 else more).set()

    threads = threads_of(endless(), Written(), per_shard=8, whole_shards=True)
    assert len(threads.next_window(True) or []) == 8
    assert second.wait(PATIENCE)
    assert not more.wait(0.5)
    assert len(threads.next_window(True) or []) == 8
    assert more.wait(PATIENCE)
    threads.close()


def test_a_shard_without_requests_does_not_shift_later_windows():
    """All rows of the first shard fail; the next shard is one window, as it is when the run goes on after it."""
    windows = drive(threads_of(rows_of(*[-1] * 4, *[1] * 4, *[1] * 4), Written(), per_shard=4, whole_shards=True))
    assert windows == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_flush_returns_after_all_earlier_outcomes():
    written = Written()
    threads = threads_of(rows_of(1, 1, 1), written)
    window = threads.next_window(True)
    assert window is not None
    for request in window[:2]:
        threads.put(outcome(request.row, Sample(0, 0)))
    assert threads.flush()
    assert written.flushed == [2]
    threads.close()


def test_a_flush_does_not_wait_for_a_disk_that_has_failed():
    class Broken(Written):
        def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
            raise OSError("disk is gone")

    threads = threads_of(rows_of(1), Broken())
    assert threads.next_window(True) is not None
    threads.put(outcome(0, Sample(0, 0)))
    assert not threads.flush()
    with pytest.raises(OSError, match="disk is gone"):
        threads.close()


@pytest.mark.parametrize(("size", "sizes"), [(3, [1, 3, 1, 1, 3, 3]), (7, [5, 7]), (14, [5, 7])])
def test_a_window_may_be_a_part_of_a_shard(size: int, sizes: list[int]) -> None:
    rows = [row for row in rows_of(*[1] * 21) if row.position not in (0, 1) and not 7 <= row.position < 14]
    windows = [[row.position for row in window] for window in row_windows(rows, Layout(21, 7), size)]
    assert [len(window) for window in windows] == sizes
    assert [position for window in windows for position in window] == [row.position for row in rows]
