"""Workers that come back, or were there before the driver: they go on with their rows, which nobody else gets."""

from mlx_bulk.runner.leasing.lease_sizes import FIRST_LEASES
from mlx_bulk.runner.leasing.leaser import RETURN_SECONDS

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
