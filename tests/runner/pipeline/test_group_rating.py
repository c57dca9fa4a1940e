"""Groups at the desk: rated when their last sample is there, recorded whole or not at all, and nobody waits for ever."""

import threading

import pytest
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.requests import Failure, Row
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.pipeline.io_threads import IOThreads
from mlx_bulk.runner.store.recovery import Recovered
from mlx_bulk.runner.store.shard_ledger import Ledger

from ..support.made_up_groups import PATIENCE, SAMPLES, Rolling, Slow, Written, desk_of, outcome, put


@pytest.fixture
def judge() -> Slow:
    return Slow()


def test_a_group_is_rated_with_its_last_sample_and_recorded_when_it_is_rated(judge: Slow):
    written = Written()
    desk = desk_of(3, written, Rolling(judge))
    desk.next_window(True)
    put(desk, 1, [2, 0])
    put(desk, 0)
    judge.wait_for(1)
    assert (judge.asked, written.groups) == ([0], [])
    put(desk, 1, [1])
    judge.wait_for(2)
    judge.rated(1)
    written.wait_for(1)  # no other outcome comes: the rating itself wakes the thread that records
    assert written.groups == [(1, [0, 1, 2])]
    judge.rated(0)
    desk.close()
    assert written.groups == [(1, [0, 1, 2]), (0, [0, 1, 2])]
    assert judge.closed


def test_without_a_judge_a_group_is_recorded_with_its_last_sample():
    written = Written()
    desk = desk_of(2, written, Rolling(None), newest=lambda: 12)
    desk.next_window(True)
    put(desk, 0)
    put(desk, 1, [0, 1])
    desk.close()
    assert written.groups == [(0, [0, 1, 2])]


def test_the_newest_version_is_asked_when_a_group_is_recorded(judge: Slow):
    job, newest = Rolling(judge), [3]
    desk = desk_of(1, Written(), job, newest=lambda: newest[0])
    desk.next_window(True)
    put(desk, 0)
    judge.wait_for(1)
    newest[0] = 5
    judge.rated(0)
    desk.close()
    assert job.versions == [5]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_sample_that_fails_makes_one_failure_of_its_row_when_all_are_there(judge: Slow, failing: int):
    written = Written()
    desk = desk_of(1, written, Rolling(judge))
    desk.next_window(True)
    for sample in range(SAMPLES):
        desk.put(Failure(0, None, sample, "generate", "NotANumber", "NaN", "") if sample == failing else outcome(0, sample))
    desk.close()
    assert (judge.asked, written.groups) == ([], [])
    (failure,) = written.failed
    assert (failure.row, failure.sample, failure.key, failure.error, failure.input) == (0, None, "key 0", "NotANumber", '{"n": 0}')
    assert failure.message == f"sample {failing}: NaN; its group is left out as a whole"


def test_what_is_dropped_does_not_stop_a_run_that_stops_at_the_first_error():
    written = Written()
    desk = desk_of(9, written, Rolling(None), fail_fast=True)
    desk.next_window(True)
    put(desk, 7)
    put(desk, 8)
    desk.close()
    assert ([failure.error for failure in written.failed], written.groups) == (["DegenerateGroup"], [(8, [0, 1, 2])])
    desk = desk_of(2, Written(), Rolling(None), fail_fast=True)
    desk.next_window(True)
    for sample in range(SAMPLES):
        desk.put(Failure(1, None, sample, "generate", "NotANumber", "NaN", ""))
    with pytest.raises(DataError, match=r"on_error: fail, and row 1 \(key key 1\) failed at generate: sample 0: NaN"):
        desk.close()


def test_the_model_waits_when_too_many_groups_are_not_rated(judge: Slow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mlx_bulk.runner.pipeline.io_threads.OUTCOMES", SAMPLES)
    monkeypatch.setattr("mlx_bulk.runner.pipeline.io_threads.RATED_AT_ONCE", 2)
    monkeypatch.setattr("mlx_bulk.runner.pipeline.recorder.RATED_AT_ONCE", 2)
    written = Written()
    desk = desk_of(20, written, Rolling(judge))
    desk.next_window(True)
    model = threading.Thread(target=lambda: [put(desk, position) for position in range(10)], daemon=True)
    model.start()
    judge.wait_for(3)  # one more than may wait: with it the thread that records stands still
    assert model.is_alive()
    for position in range(10):
        judge.wait_for(min(position + 3, 10))
        assert len(judge.asked) <= position + 3
        judge.rated(position)
    model.join(PATIENCE)
    assert not model.is_alive()
    desk.close()
    assert sorted(position for position, _ in written.groups) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [failure.row for failure in written.failed] == [7]


@pytest.mark.parametrize("whole_shards", [False, True])
@pytest.mark.parametrize("recorded", [2, 5])
def test_a_recorded_group_stands_though_n_is_another_now(recorded: int, whole_shards: bool):
    """``sampling.n`` was adopted, or a row's own n has changed: nothing is asked for that would be thrown away."""
    ledger, written = Ledger(0, 10), Written()
    for sample in range(recorded):
        ledger.add_result(0, sample)
    desk = desk_of(2, written, Rolling(None), {0: ledger}, whole_shards=whole_shards)
    window = desk.next_window(True)
    assert window is not None
    assert [request.row for request in window] == ([0, 1] if whole_shards else [1])
    for request in window:
        put(desk, request.row)
    desk.close()
    assert written.admitted == {0: recorded, 1: SAMPLES}
    assert written.groups == [(1, [0, 1, 2])]


@pytest.mark.parametrize("whole_shards", [False, True])
def test_a_recorded_group_stands_though_its_row_cannot_be_run_now(whole_shards: bool):
    ledger, written = Ledger(0, 10), Written()
    ledger.add_result(0, 0)
    desk = desk_of(1, written, Rolling(None), {0: ledger}, whole_shards=whole_shards, fatal={0: "the process died of it"})
    assert desk.next_window(True) is None
    desk.close()
    assert (written.admitted, written.failed) == ({0: 1}, [])


def test_a_failed_engine_waits_for_no_rating(judge: Slow):
    written = Written()
    desk = desk_of(2, written, Rolling(judge))
    desk.next_window(True)
    put(desk, 0)
    put(desk, 1)
    judge.wait_for(2)
    judge.rated(1)
    desk.abandon()
    closing = threading.Thread(target=desk.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert written.groups == [(1, [0, 1, 2])]


def test_a_stop_leaves_groups_that_are_not_rated_and_keeps_those_that_are(judge: Slow):
    written, stop = Written(), threading.Event()
    desk = desk_of(3, written, Rolling(judge), stopped=stop.is_set)
    desk.next_window(True)
    put(desk, 0)
    put(desk, 1)
    judge.wait_for(2)
    judge.rated(1)
    stop.set()
    desk.close()  # row 0's ratings never come
    assert (written.groups, written.failed, judge.closed) == ([(1, [0, 1, 2])], [], True)


def test_a_flush_waits_for_no_ratings_and_the_end_for_all(judge: Slow):
    written = Written()
    desk = desk_of(2, written, Rolling(judge))
    desk.next_window(True)
    put(desk, 0)
    judge.wait_for(1)
    assert desk.flush()
    assert written.groups == []
    closing = threading.Thread(target=desk.close, daemon=True)
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
    desk = desk_of(3, written, Rolling(judge), {0: ledger}, whole_shards=True)
    window = desk.next_window(True)
    assert window is not None
    assert [request.row for request in window] == [0, 1, 2]
    for position in range(3):
        put(desk, position)
    judge.wait_for(1)
    judge.rated(2)
    desk.close()
    assert (judge.asked, written.groups, written.failed) == ([2], [(2, [0, 1, 2])], [])
    again = desk_of(3, Written(), Rolling(judge), {0: ledger})
    left = again.next_window(True)
    assert left is not None
    assert [request.row for request in left] == [2]
    again.close()


def test_windows_keep_to_a_round():
    layout = Layout(5, 2, 3)
    rows = [Row(layout.position(around, row), str(row), {}, round=around) for around in range(3) for row in range(5)]
    nothing = Recovered(frozenset(), {}, {}, {}, {}, 0, 0, 0)
    for window_rows, sizes in ((4096, [5, 5, 5]), (4, [4, 1] * 3), (1, [2, 2, 1] * 3)):
        desk = IOThreads(
            *(Rolling(None), iter(rows), Written(), nothing, layout, lambda _: None, lambda: False),  # pyright: ignore[reportArgumentType]
            fail_fast=False,
            whole_shards=False,
            window_rows=window_rows,
        )
        windows = list(iter(lambda desk=desk: desk.next_window(True), None))
        assert [len(window) for window in windows if window] == sizes
        desk.close()
