"""Tests groups in the I/O threads: rated at their last sample, recorded whole or not at all, and never waited for without end."""

import threading
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.pipeline.io_threads import IOThreads, SessionInput, SessionRules, row_windows
from mlx_bulk.runner.pipeline.row_requests import NOTHING_RECORDED
from mlx_bulk.runner.store.shard_ledger import Ledger

from ..support.made_up_groups import PATIENCE, SAMPLES, Rolling, Slow, Written, outcome, put, threads_of


@pytest.fixture
def judge() -> Slow:
    return Slow()


def test_a_group_is_rated_with_its_last_sample_and_recorded_when_it_is_rated(judge: Slow):
    written = Written()
    threads = threads_of(3, written, Rolling(judge))
    threads.next_window(True)
    put(threads, 1, [2, 0])
    put(threads, 0)
    judge.wait_for(1)
    assert (judge.asked, written.groups) == ([0], [])
    put(threads, 1, [1])
    judge.wait_for(2)
    judge.rated(1)
    written.wait_for(1)  # no other outcome comes: the rating itself wakes the thread that records
    assert written.groups == [(1, [0, 1, 2])]
    judge.rated(0)
    threads.close()
    assert written.groups == [(1, [0, 1, 2]), (0, [0, 1, 2])]
    assert judge.closed


def test_without_a_judge_a_group_is_recorded_with_its_last_sample():
    written = Written()
    threads = threads_of(2, written, Rolling(None), newest_version=lambda: 12)
    threads.next_window(True)
    put(threads, 0)
    put(threads, 1, [0, 1])
    threads.close()
    assert written.groups == [(0, [0, 1, 2])]


def test_the_newest_version_is_asked_when_a_group_is_recorded(judge: Slow):
    job, newest = Rolling(judge), [3]
    threads = threads_of(1, Written(), job, newest_version=lambda: newest[0])
    threads.next_window(True)
    put(threads, 0)
    judge.wait_for(1)
    newest[0] = 5
    judge.rated(0)
    threads.close()
    assert job.versions == [5]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_sample_that_fails_makes_one_failure_of_its_row_when_all_are_there(judge: Slow, failing: int):
    written = Written()
    threads = threads_of(1, written, Rolling(judge))
    threads.next_window(True)
    for sample in range(SAMPLES):
        threads.put(Failure(0, None, sample, "generate", "NotANumber", "NaN", "") if sample == failing else outcome(0, sample))
    threads.close()
    assert (judge.asked, written.groups) == ([], [])
    (failure,) = written.failed
    assert (failure.row, failure.sample, failure.key, failure.error, failure.input) == (0, None, "key 0", "NotANumber", '{"n": 0}')
    assert failure.message == f"sample {failing}: NaN; its group is left out as a whole"


def test_what_is_dropped_does_not_stop_a_run_that_stops_at_the_first_error():
    written = Written()
    threads = threads_of(9, written, Rolling(None), fail_fast=True)
    threads.next_window(True)
    put(threads, 7)
    put(threads, 8)
    threads.close()
    assert ([failure.error for failure in written.failed], written.groups) == (["DegenerateGroup"], [(8, [0, 1, 2])])
    threads = threads_of(2, Written(), Rolling(None), fail_fast=True)
    threads.next_window(True)
    for sample in range(SAMPLES):
        threads.put(Failure(1, None, sample, "generate", "NotANumber", "NaN", ""))
    with pytest.raises(DataError, match=r"on_error: fail, and row 1 \(key key 1\) failed at generate: sample 0: NaN"):
        threads.close()


def test_the_model_waits_when_too_many_groups_are_not_rated(judge: Slow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mlx_bulk.runner.pipeline.io_threads.OUTCOMES", SAMPLES)
    monkeypatch.setattr("mlx_bulk.runner.pipeline.io_threads.RATED_AT_ONCE", 2)
    monkeypatch.setattr("mlx_bulk.runner.pipeline.recorder.RATED_AT_ONCE", 2)
    written = Written()
    threads = threads_of(20, written, Rolling(judge))
    threads.next_window(True)
    model = threading.Thread(target=lambda: [put(threads, position) for position in range(10)], daemon=True)
    model.start()
    judge.wait_for(3)  # one more than may wait: with it the thread that records stands still
    assert model.is_alive()
    for position in range(10):
        judge.wait_for(min(position + 3, 10))
        assert len(judge.asked) <= position + 3
        judge.rated(position)
    model.join(PATIENCE)
    assert not model.is_alive()
    threads.close()
    assert sorted(position for position, _ in written.groups) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [failure.row for failure in written.failed] == [7]


@pytest.mark.parametrize("whole_shards", [False, True])
@pytest.mark.parametrize("recorded", [2, 5])
def test_a_recorded_group_stays_when_n_changes(recorded: int, whole_shards: bool):
    """``sampling.n`` was adopted, or a row's own n has changed: nothing is asked for that would be thrown away."""
    ledger, written = Ledger(0, 10), Written()
    for sample in range(recorded):
        ledger.add_result(0, sample)
    threads = threads_of(2, written, Rolling(None), {0: ledger}, whole_shards=whole_shards)
    window = threads.next_window(True)
    assert window is not None
    assert [request.row for request in window] == ([0, 1] if whole_shards else [1])
    for request in window:
        put(threads, request.row)
    threads.close()
    assert written.admitted == {0: recorded, 1: SAMPLES}
    assert written.groups == [(1, [0, 1, 2])]


@pytest.mark.parametrize("whole_shards", [False, True])
def test_a_recorded_group_stays_when_its_row_cannot_run_any_more(whole_shards: bool):
    ledger, written = Ledger(0, 10), Written()
    ledger.add_result(0, 0)
    threads = threads_of(1, written, Rolling(None), {0: ledger}, whole_shards=whole_shards, fatal={0: "the process died of it"})
    assert threads.next_window(True) is None
    threads.close()
    assert (written.admitted, written.failed) == ({0: 1}, [])


def test_a_failed_engine_waits_for_no_rating(judge: Slow):
    written = Written()
    threads = threads_of(2, written, Rolling(judge))
    threads.next_window(True)
    put(threads, 0)
    put(threads, 1)
    judge.wait_for(2)
    judge.rated(1)
    threads.abandon()
    closing = threading.Thread(target=threads.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert written.groups == [(1, [0, 1, 2])]


def test_a_stop_leaves_groups_that_are_not_rated_and_keeps_those_that_are(judge: Slow):
    written, stop = Written(), threading.Event()
    threads = threads_of(3, written, Rolling(judge), stopped=stop.is_set)
    threads.next_window(True)
    put(threads, 0)
    put(threads, 1)
    judge.wait_for(2)
    judge.rated(1)
    stop.set()
    threads.close()  # row 0's ratings never come
    assert (written.groups, written.failed, judge.closed) == ([(1, [0, 1, 2])], [], True)


def test_a_flush_waits_for_no_ratings_and_the_end_for_all(judge: Slow):
    written = Written()
    threads = threads_of(2, written, Rolling(judge))
    threads.next_window(True)
    put(threads, 0)
    judge.wait_for(1)
    assert threads.flush()
    assert written.groups == []
    closing = threading.Thread(target=threads.close, daemon=True)
    closing.start()
    judge.rated(0)
    closing.join(PATIENCE)
    assert (closing.is_alive(), written.groups) == (False, [(0, [0, 1, 2])])


def test_whole_shards_run_recorded_groups_again_and_record_none_twice(judge: Slow):
    """Row 0 is recorded, row 1 has failed in the model, or was dropped: its batch is repeated as it was."""
    ledger, written = Ledger(0, 10), Written()
    for sample in range(SAMPLES):
        ledger.add_result(0, sample)
    ledger.admit(0, SAMPLES)
    ledger.add_error(1, None)
    threads = threads_of(3, written, Rolling(judge), {0: ledger}, whole_shards=True)
    window = threads.next_window(True)
    assert window is not None
    assert [request.row for request in window] == [0, 1, 2]
    for position in range(3):
        put(threads, position)
    judge.wait_for(1)
    judge.rated(2)
    threads.close()
    assert (judge.asked, written.groups, written.failed) == ([2], [(2, [0, 1, 2])], [])
    again = threads_of(3, Written(), Rolling(judge), {0: ledger})
    left = again.next_window(True)
    assert left is not None
    assert [request.row for request in left] == [2]
    again.close()


def test_windows_keep_to_a_round():
    layout = Layout(5, 2, 3)
    rows = [Row(layout.position(around, row), str(row), {}, round=around) for around in range(3) for row in range(5)]
    for size, sizes in ((4096, [5, 5, 5]), (4, [4, 1] * 3), (2, [2, 2, 1] * 3), (1, [1] * 15)):
        job: Any = Rolling(None)
        written: Any = Written()
        session = SessionInput(job, row_windows(rows, layout, size), layout, NOTHING_RECORDED)
        rules = SessionRules(lambda _: None, lambda: False, whole_shards=False, fail_fast=False)
        threads = IOThreads(session, rules, written)
        windows = list(iter(lambda threads=threads: threads.next_window(True), None))
        assert [len(window) for window in windows if window] == sizes
        threads.close()
