"""Workers that come back, or were there before the driver: they go on with their rows, which nobody else gets."""

from collections.abc import Iterable

from mlx_bulk.runner.leasing.lease_log import LOST, REFUSED, RESTART
from mlx_bulk.runner.leasing.lease_sizes import FIRST_LEASES
from mlx_bulk.runner.leasing.leaser import RETURN_SECONDS, Leaser
from mlx_bulk.runner.store.shard_ledger import Ledger, RecordedRow

from .small_leasers import given, leaser, nothing


def test_rows_that_a_worker_has_since_before_go_to_nobody_else():
    desk = leaser(10)
    desk.adopt("old", {"before-3": [0, 1, 2]}, 0.0)
    new = given(desk.give("new", ["new", "another"], 0.0))
    assert new.given.positions[0] == 3
    rows = desk.end("before-3", 5.0)
    assert rows is not None
    assert rows.positions == [0, 1, 2]


def test_rows_of_an_adopted_lease_come_back_when_its_worker_goes():
    desk = leaser(10)
    desk.adopt("old", {"before-3": [0, 1, 9]}, 0.0)
    lease = given(desk.give("new", ["new"], 0.0))
    (lost,) = desk.lose("old", 0.0)
    desk.give_back(lost, nothing(lost))
    seen = set(lease.given.positions)
    while (lease := desk.give("new", ["new"], 1.0)) is not None:
        seen |= set(lease.given.positions)
        desk.end(lease.name, 2.0)
        assert len(desk.of("new")) <= FIRST_LEASES
    assert seen == set(range(10))


def test_a_lease_without_rows_says_nothing_of_a_workers_pace():
    """A worker tells a driver that was started again of a lease that it has done, whose rows the driver does not hold."""
    desk = leaser(10)
    desk.adopt("old", {"before-3": [0, 1]}, 0.0)
    desk.end("before-3", 1.0)
    assert desk.pace("old", 1.0) is None
    while desk.give("other", ["other"], 2.0) is not None:
        pass
    assert desk.late("old", ["old", "other"], 100.0) is None  # nobody's pace is known


def test_a_worker_that_comes_back_is_as_fast_as_before():
    desk = leaser(400)
    first = given(desk.give("a", ["a"], 0.0))
    desk.end(first.name, 64.0)  # a row a second
    second = given(desk.give("a", ["a"], 64.0))
    (lost,) = desk.lose("a", 64.0)
    assert desk.give_back(lost, nothing(lost)) == []
    desk.adopt("a", {second.name: second.given.positions}, 70.0)
    desk.give("a", ["a"], 70.0)
    desk.end(second.name, 70.0 + len(second.given.rows))
    assert desk.pace("a", 70.0 + len(second.given.rows)) == 1.0


def test_a_worker_that_comes_back_has_its_rows_back_as_far_as_they_wait():
    desk = leaser(10)
    first = given(desk.give("a", ["a"], 0.0))
    desk.begin(first.name)
    (lost,) = desk.lose("a", 0.0)
    assert desk.give_back(lost, nothing(lost)) == []
    desk.adopt("a", {first.name: first.given.positions[2:]}, 1.0)
    others = given(desk.give("b", ["b", "another"], RETURN_SECONDS))
    assert others.given.positions == [0, 1]
    assert given(desk.give("b", ["b", "another"], RETURN_SECONDS)).given.positions[0] == 5  # the next of the input
    (again,) = desk.lose("a", 0.0)
    assert again.positions == [2, 3, 4]


def test_rows_that_come_back_after_their_worker_did_stay_with_it():
    """What is recorded of them was still being looked up when the worker was there again."""
    desk = leaser(10)
    first = given(desk.give("a", ["a"], 0.0))
    (lost,) = desk.lose("a", 0.0)
    desk.adopt("a", {first.name: first.given.positions}, 1.0)
    assert desk.give_back(lost, nothing(lost)) == []
    assert given(desk.give("b", ["b", "another"], 1.0)).given.positions[0] == 5
    assert [rows.positions for rows in desk.lose("a", 0.0)] == [[0, 1, 2, 3, 4]]


def test_a_shard_that_a_worker_has_since_before_is_never_divided():
    """Deterministic: the worker says which rows are unfinished; where it goes, the shard is run again with all its rows."""
    desk = leaser(300, whole_shards=True)
    desk.adopt("old", {"before-3": [140, 150]}, 0.0)
    assert [given(desk.give("new", ["new"], 0.0)).given.shard for _ in range(2)] == [0, 2]
    (lost,) = desk.lose("old", 0.0)
    assert lost.positions == list(range(100, 200))


def test_rows_of_a_lost_connection_are_kept_for_its_worker_while_there_are_others():
    desk = leaser(1000)
    first = given(desk.give("a", ["a", "b"], 0.0))
    desk.begin(first.name)
    (lost,) = desk.lose("a", 1.0)
    desk.give_back(lost, nothing(lost))
    assert given(desk.give("b", ["a", "b"], 1.1)).given.positions[0] == first.given.positions[-1] + 1  # the next of the input
    assert desk.adopt("a", {first.name: first.given.positions}, 1.2) == 0
    assert given(desk.give("b", ["a", "b"], 5.0)).given.positions[0] > first.given.positions[-1]
    (lost,) = desk.lose("a", 6.0)
    assert lost.positions == first.given.positions


def test_rows_of_a_lost_worker_are_given_at_once_where_nothing_else_is_left():
    desk = leaser(10, whole_shards=True)
    given(desk.give("a", ["a"], 0.0))
    for lost in desk.lose("a", 0.0):
        desk.give_back(lost, nothing(lost))
    assert desk.give("b", ["b"], 0.1) is not None


def test_rows_given_out_before_their_worker_joined_again_count_as_begun_again():
    """A driver that was started again knows of a worker's rows once it has joined."""
    desk = leaser(100)
    last = given(desk.give("b", ["b"], 0.0)).given.positions[-1]
    assert desk.adopt("a", {"before-1": [last - 1, last, last + 1]}, 1.0) == 2


def landed(desk: Leaser, worker: str, positions: Iterable[int]) -> None:
    desk.note(worker, [(position, 1) for position in positions], [(position, 0) for position in positions], 0.5)


def test_rows_that_came_before_they_were_read_are_looked_up_and_not_given_again():
    """The worker has done its lease while the driver was away: all of it comes before the new driver has read its rows."""
    desk = leaser(10)
    desk.adopt("old", {"before-3": [2, 3, 4]}, 0.0)
    landed(desk, "old", [2, 3])  # the records of one row did not come
    done = desk.leases["before-3"]
    desk.end("before-3", 1.0)
    assert done.positions == [2, 3, 4]
    lease = given(desk.give("new", ["new"], 1.0))
    assert lease.given.positions == [0, 1, 4]
    (come,) = desk.come()
    assert come.positions == [2, 3]
    assert desk.come() == []
    assert desk.give_back(come, [RecordedRow(position, True, (0,)) for position in come.positions]) == []
    desk.end(lease.name, 2.0)
    assert given(desk.give("new", ["new"], 2.0)).given.positions[0] == 5


def test_what_is_left_of_rows_that_came_in_part_is_given_with_what_has_come():
    desk = leaser(4)
    desk.adopt("old", {"before-3": [0, 1]}, 0.0)
    desk.note("old", [(0, 2), (1, 2)], [(0, 0), (0, 1), (1, 0)], 0.5)
    desk.lose("old", 1.0)
    assert given(desk.give("new", ["new"], 1.0)).given.positions == [2, 3]
    (come,) = desk.come()
    assert desk.give_back(come, [RecordedRow(0, True, (0, 1)), RecordedRow(1, False, (0,))]) == []
    again = given(desk.give("new", ["new"], 1.0))
    assert (again.given.positions, again.given.recorded) == ([1], ((1, 0),))
    assert (again.again, again.cause) == (1, LOST)


def test_a_shard_that_came_before_it_was_read_is_not_given_again():
    desk = leaser(300, whole_shards=True)
    desk.adopt("old", {"before-1": list(range(100)), "before-2": list(range(150, 200))}, 0.0)
    landed(desk, "old", range(100))
    landed(desk, "old", range(150, 199))
    for name in ("before-1", "before-2"):
        desk.end(name, 1.0)
    assert given(desk.give("old", ["old"], 1.0)).given.shard == 2
    first, second = desk.come()
    assert (first.positions, second.positions) == (list(range(100)), list(range(100, 200)))
    assert desk.give_back(first, [RecordedRow(position, True, (0,)) for position in first.positions]) == []
    assert desk.give_back(second, [RecordedRow(position, position < 199, (0,) * (position < 199)) for position in second.positions]) == []
    again = given(desk.give("old", ["old"], 1.0))
    assert (again.given.positions, again.again, again.cause) == (list(range(100, 200)), 100, RESTART)


def test_a_shard_of_which_an_earlier_start_has_records_is_begun_again():
    ledger = Ledger(0, 100)
    ledger.add_result(7, 0)
    desk = leaser(200, {0: ledger}, whole_shards=True)
    leases = [given(desk.give("new", ["new"], 0.0)) for _ in range(2)]
    assert [(lease.given.shard, lease.again, lease.cause) for lease in leases] == [(0, 100, RESTART), (1, 0, "")]
    assert desk.adopt("old", {"before-1": list(range(50, 100))}, 1.0) == 0  # its rows count once


def test_an_unread_shard_counts_as_begun_again_when_its_worker_goes():
    desk = leaser(100, whole_shards=True)
    desk.adopt("old", {"before-1": list(range(50, 100))}, 0.0)
    desk.lose("old", 1.0)
    again = given(desk.give("new", ["new"], 1.0))
    assert (again.again, again.cause) == (100, LOST)


def test_rows_whose_records_are_refused_count_as_begun_again():
    desk = leaser(8)
    first = given(desk.give("a", ["a"], 0.0))
    desk.redo([(position, 0) for position in first.given.positions])
    rows = desk.end(first.name, 1.0)
    assert rows is not None
    assert desk.give_back(rows, nothing(rows)) == []
    while first.given.positions[0] not in (again := given(desk.give("a", ["a"], 1.0))).given.positions:
        desk.end(again.name, 1.0)
    assert (again.again, again.cause) == (len(again.given.rows), REFUSED)
