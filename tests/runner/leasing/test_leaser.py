"""Which rows go to whom: sizes by pace, and rows that come back."""

import pytest
from mlx_bulk.runner.leasing import waiting_rows
from mlx_bulk.runner.leasing.leaser import RETURN_SECONDS
from mlx_bulk.runner.leasing.row_set import RowSet
from mlx_bulk.runner.store.shard_ledger import WHOLE, Ledger, RecordedRow

from .small_leasers import given, leaser, nothing, rows_of


def test_a_worker_gets_two_leases_and_rows_for_ten_seconds():
    desk = leaser()
    first, second = given(desk.give("a", ["a"], 0.0)), given(desk.give("a", ["a"], 0.0))
    assert (first.given.positions, second.given.positions) == (list(range(64)), list(range(64, 100)))  # the shard ends there
    assert desk.give("a", ["a"], 0.0) is None
    desk.end(first.name, 16.0)  # 4 rows a second
    assert len(given(desk.give("a", ["a"], 16.0)).given.rows) == 40


def test_leases_become_small_towards_the_end():
    desk = leaser(100)
    sizes: list[int] = []
    for turn in range(30):
        for worker in ("a", "b"):
            while (lease := desk.give(worker, ["a", "b"], float(turn))) is not None:
                sizes.append(len(lease.given.rows))
        for open_lease in list(desk.leases.values()):
            desk.end(open_lease.name, turn + 0.5)
    assert sum(sizes) == 100
    assert sizes[0] == 25
    assert sizes[0] > sizes[2] > sizes[-1]
    assert desk.exhausted


def test_what_is_recorded_is_left_out_or_told():
    ledger = Ledger(0, 100)
    ledger.add_error(3, None)
    ledger.add_result(4, 1)
    lease = given(leaser(8, {0: ledger}).give("a", ["a"], 0.0))
    assert lease.given.positions == [0, 1, 2, 4]
    assert lease.given.recorded == ((4, 1),)
    whole = given(leaser(8, {0: ledger}, whole_shards=True).give("a", ["a"], 0.0))
    assert whole.given.positions == list(range(8))
    assert whole.given.recorded == ((3, WHOLE), (4, 1))


def test_finished_rows_are_told_as_they_come():
    """A driver that is killed meanwhile has noted who has done them."""
    told: list[tuple[str, set[int]]] = []
    desk = leaser(finished=lambda lease, positions, now: told.append((lease.worker, set(positions))))
    desk.give("a", ["a"], 0.0)
    desk.note("a", [(0, 1), (1, 2)], [(0, 0), (1, 0), (5, WHOLE)], 1.0)
    desk.note("a", [], [(1, 1)], 2.0)
    assert told == [("a", {0, 5}), ("a", {1})]
    assert len(desk.leases) == 1


def test_rows_of_a_worker_that_left_go_first_and_without_those_that_came():
    desk = leaser()
    first = given(desk.give("a", ["a", "another"], 0.0))
    desk.begin(first.name)
    (lost,) = desk.lose("a", 0.0)
    states = [RecordedRow(position, position < 60, (0,) if position == 60 else ()) for position in lost.positions]
    assert desk.give_back(lost, states) == []
    again = given(desk.give("b", ["b", "another"], RETURN_SECONDS))
    assert again.given.positions == [60, 61, 62, 63]
    assert (again.given.recorded, again.given.losses, again.given.alone) == (((60, 0),), 1, False)
    assert desk.give_back(lost, [RecordedRow(position, True) for position in lost.positions]) == []


def test_workers_that_have_enough_share_the_rows_of_a_lost_one():
    desk = leaser(4000)
    for worker in ("a", "b", "c"):
        desk.end(given(desk.give(worker, ["a", "b", "c"], 0.0)).name, 16.0)
    desk.deal(["a", "b", "c"], 16.0)
    desk.begin(desk.of("c")[0].name)
    assert len(desk.of("c")) > 1  # those that it has not begun are shared, too
    lost = desk.lose("c", 17.0)
    for rows in lost:
        desk.give_back(rows, nothing(rows))
    assert desk.deal(["a", "b"], 17.0) == []  # they have enough, and c may come back
    dealt = desk.deal(["a", "b"], 17.0 + RETURN_SECONDS)
    assert sorted(position for lease in dealt for position in lease.given.positions) == sorted(
        position for rows in lost for position in rows.positions
    )
    assert {lease.worker for lease in dealt} == {"a", "b"}


def test_the_finished_part_of_a_shard_is_not_done_again_where_another_part_is_not():
    desk = leaser(8, whole_shards=True)
    whole = desk.end(given(desk.give("a", ["a"], 0.0)).name, 1.0)
    assert whole is not None
    states = [RecordedRow(position, position != 5) for position in whole.positions]
    done, unfit = whole.part([row for row in whole.rows if row.position != 5]), whole.part([whole.rows[5]])
    assert [desk.give_back(part, states) for part in (done, unfit)] == [[], []]
    assert given(desk.give("a", ["a"], 1.0)).given.positions == [5]
    assert desk.give("a", ["a"], 1.0) is None


def test_rows_that_suit_a_slow_worker_alone_do_not_wait_for_a_fast_one():
    """The fast one would be done with them sooner, if it could have them."""
    desk = leaser(10, suits=lambda worker, rows: worker == "slow" or not rows.no_room)
    for worker, seconds in (("slow", 100.0), ("fast", 1.0)):
        desk.end(given(desk.give(worker, [worker], 0.0)).name, seconds)
    while (lease := desk.give("fast", ["fast"], 100.0)) is not None:
        desk.end(lease.name, 101.0)
    assert desk.exhausted
    unfit = RowSet(0, list(rows_of([7])), no_room={"fast": "it is small"})
    assert desk.give_back(unfit, nothing(unfit)) == []
    assert desk.deal(["fast"], 101.0) == []
    assert [lease.given.positions for lease in desk.deal(["slow", "fast"], 101.0)] == [[7]]


def test_a_worker_gets_no_new_rows_while_many_wait_for_one_with_more_room(monkeypatch: pytest.MonkeyPatch):
    """Else a small worker would take the whole input into memory, shard by shard, and give it back."""
    monkeypatch.setattr(waiting_rows, "_MOST_HELD_UP", 150)
    desk = leaser(1000, whole_shards=True, suits=lambda worker, rows: worker not in rows.no_room)
    for _ in range(2):
        lease = given(desk.give("small", ["small", "large"], 0.0))
        lease.given.no_room = {"small": "it is small"}
        (back,) = desk.take_back([lease], 1.0)
        desk.give_back(back, nothing(back))
    assert desk.give("small", ["small", "large"], 1.0) is None
    assert [given(desk.give("large", ["small", "large"], 1.0)).given.shard for _ in range(2)] == [1, 0]
    assert given(desk.give("small", ["small", "large"], 1.0)).given.shard == 2


def test_rows_that_nobody_has_room_for_are_told_once_nothing_else_goes_on():
    desk = leaser(200, whole_shards=True, suits=lambda worker, rows: worker not in rows.no_room)
    first, second = given(desk.give("a", ["a"], 0.0)), given(desk.give("a", ["a"], 0.0))
    first.given.no_room = {"a": "it is small"}
    (back,) = desk.take_back([first], 1.0)
    desk.give_back(back, nothing(back))
    assert desk.stuck(lambda rows: False) is None
    desk.end(second.name, 2.0)
    assert desk.deal(["a"], 2.0) == []
    assert desk.stuck(lambda rows: True) is None
    stuck = desk.stuck(lambda rows: False)
    assert stuck is not None
    assert (stuck.shard, stuck.no_room) == (0, {"a": "it is small"})
