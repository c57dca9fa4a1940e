"""Rows of slow workers go to idle ones too, and rows that are begun again are counted."""

from mlx_bulk.runner.leasing.leaser import RETURN_SECONDS, Leaser
from mlx_bulk.runner.leasing.open_lease import OpenLease
from mlx_bulk.runner.leasing.row_set import RowSet
from mlx_bulk.runner.store.shard_ledger import RecordedRow

from .small_leasers import given, leaser, nothing


def late(desk: Leaser, idle: str, workers: list[str], now: float) -> tuple[OpenLease, RowSet]:
    found = desk.late(idle, workers, now)
    assert found is not None
    return found


def all_given(desk: Leaser, workers: list[str], now: float) -> dict[str, list[OpenLease]]:
    """Gives out all rows at once; only the last lease of each worker, which is returned, stays open."""
    last: dict[str, list[OpenLease]] = {worker: [] for worker in workers}
    while not desk.exhausted:
        for worker in workers:
            for lease in last[worker]:
                desk.end(lease.name, now)
            last[worker] = [lease for _ in range(2) if (lease := desk.give(worker, workers, now)) is not None]
            now += 1
    return last


def test_an_idle_worker_has_the_last_rows_of_a_slow_one_too_as_far_as_it_is_done_with_them_sooner():
    desk, both = leaser(80, room=8), ["slow", "fast"]
    slow = given(desk.give("slow", both, 0.0))
    desk.note("slow", [(0, 1)], [(0, 0)], 4.0)  # a row in 4 seconds
    now = 4.0
    while (fast := desk.give("fast", ["fast"], now)) is not None:
        assert desk.late("fast", both, now) is None  # it has work
        now += len(fast.given.rows) / 2  # two rows a second
        desk.end(fast.name, now)
    assert desk.exhausted
    lease, rows = late(desk, "fast", both, now)
    assert lease is slow
    assert rows.positions == slow.given.positions[-len(rows.rows) :]
    copy = desk.copy(rows, "fast", now)
    desk.note("fast", [(position, 1) for position in rows.positions], [(position, 0) for position in rows.positions], now + 2)
    assert not slow.left.keys() & set(rows.positions)  # whoever was first
    assert desk.end(copy.name, now + 2) is rows


def test_a_worker_that_tells_nothing_any_more_is_taken_for_slow():
    desk = leaser(64)
    last = all_given(desk, ["a", "b"], 0.0)
    for lease in last["b"]:
        desk.end(lease.name, 40.0)
    left = [position for lease in last["a"] for position in lease.given.positions]
    _, rows = late(desk, "b", ["a", "b"], 200.0)
    assert set(rows.positions) <= set(left)


def test_rows_of_a_worker_that_left_stay_with_the_one_that_has_a_copy():
    desk = leaser(20)
    last = all_given(desk, ["slow", "fast"], 0.0)
    for lease in last["fast"]:
        desk.end(lease.name, 40.0)
    held = [position for lease in last["slow"] for position in lease.given.positions]
    _, rows = late(desk, "fast", ["slow", "fast"], 200.0)
    desk.copy(rows, "fast", 200.0)
    lost = [position for each in desk.lose("slow", 201.0) for position in each.positions]
    assert sorted(lost + rows.positions) == held
    assert [each.positions for each in desk.lose("fast", 202.0)] == [rows.positions]


def test_late_rows_whose_copy_was_not_given_may_be_copied_later():
    desk = leaser(2)
    slow = given(desk.give("slow", ["slow", "fast"], 0.0))
    desk.end(given(desk.give("fast", ["fast"], 0.0)).name, 0.1)
    _, rows = late(desk, "fast", ["fast"], 50.0)
    assert desk.late("fast", ["fast"], 50.0) is None
    desk.keep(slow.name, rows)
    assert late(desk, "fast", ["fast"], 50.0) == (slow, rows)


def test_rows_that_a_lost_worker_had_begun_count_where_they_are_begun_again():
    """The engine holds 8 rows and did one a second until it told of it, 2 seconds ago at most."""
    desk = leaser(100, room=8)
    first, second = given(desk.give("slow", ["slow", "fast"], 0.0)), given(desk.give("slow", ["slow", "fast"], 0.0))
    desk.begin(first.name)
    desk.note("slow", [(0, 1), (1, 1)], [(0, 0), (1, 0)], 2.0)
    assert (len(first.left), second.begun) == (6, False)
    assert len(desk.begun("slow", 2.0)) == 6  # all that is left of what has begun
    lost = desk.lose("slow", 2.0)
    for rows in lost:
        desk.give_back(rows, [RecordedRow(position, position < 2) for position in rows.positions])
    again = [lease.again for lease in desk.deal(["fast"], 2.0 + RETURN_SECONDS)]
    assert sum(again) == 6


def test_rows_of_a_worker_that_comes_back_are_not_begun_again():
    desk = leaser(100, room=8)
    first = given(desk.give("slow", ["slow", "fast"], 0.0))
    desk.begin(first.name)
    (lost,) = desk.lose("slow", 2.0)
    desk.give_back(lost, nothing(lost))
    desk.adopt("slow", {first.name: first.given.positions}, 3.0)
    assert [lease.again for lease in desk.deal(["fast"], 3.0)] == [0, 0]


def test_rows_that_a_worker_has_begun_are_those_in_its_batch_and_what_it_has_not_told_of():
    desk = leaser(100, room=2)
    first = given(desk.give("slow", ["slow", "fast"], 0.0))
    desk.begin(first.name)
    assert len(desk.begun("slow", 0.0)) == len(first.left) == 2  # nothing is known of its pace
    second = given(desk.give("slow", ["slow", "fast"], 0.0))
    desk.note("slow", [(0, 1), (1, 1)], [(0, 0), (1, 0)], 2.0)
    third = given(desk.give("slow", ["slow", "fast"], 2.0))
    for lease in (second, third):
        desk.begin(lease.name)
    assert [len(desk.begun("slow", now)) for now in (2.0, 3.0, 4.0)] == [2, 3, 4]  # it does one a second
