"""Which rows go to whom: sizes by pace, rows that come back, slow workers, rows that end their workers."""

from collections.abc import Iterable

from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.leasing.lease_sizes import FIRST_LEASES
from mlx_bulk.runner.leasing.leaser import Leaser
from mlx_bulk.runner.leasing.open_lease import OpenLease
from mlx_bulk.runner.leasing.row_set import RowSet
from mlx_bulk.runner.pipeline.row_requests import RecordedRows
from mlx_bulk.runner.store.recovery import Recovered
from mlx_bulk.runner.store.shard_ledger import WHOLE, Ledger, RecordedRow

LAYOUT = Layout(1000, 100)


def rows_of(positions: Iterable[int]) -> list[Row]:
    return [Row(position, str(position), {}) for position in positions]


def leaser(
    rows: int = 1000, done: dict[int, Ledger] | None = None, *, whole_shards: bool = False, speculate: bool = True, room: int = 64
) -> Leaser:
    recorded = RecordedRows(Recovered(frozenset(), done or {}, {}, {}, {}, 0, 0, 0), LAYOUT)
    given = iter(rows_of(range(rows)))
    made = Leaser(given, LAYOUT, recorded, session="s", left=rows, lease_seconds=10, whole_shards=whole_shards, speculate=speculate)
    for worker in ("slow", "fast"):
        made.equip(worker, room)
    return made


def given(lease: OpenLease | None) -> OpenLease:
    assert lease is not None
    return lease


def late(desk: Leaser, idle: str, workers: list[str], now: float) -> tuple[OpenLease, RowSet]:
    found = desk.late(idle, workers, now)
    assert found is not None
    return found


def nothing(rows: RowSet) -> list[RecordedRow]:
    return [RecordedRow(position, False) for position in rows.positions]


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


def test_rows_of_a_worker_that_left_go_first_and_without_those_that_came():
    desk = leaser()
    first = given(desk.give("a", ["a", "another"], 0.0))
    desk.begin(first.name)
    (lost,) = desk.lose("a", 0.0)
    states = [RecordedRow(position, position < 60, (0,) if position == 60 else ()) for position in lost.positions]
    assert desk.give_back(lost, states) == []
    again = given(desk.give("b", ["b", "another"], 1.0))
    assert again.given.positions == [60, 61, 62, 63]
    assert (again.given.recorded, again.given.losses, again.given.alone) == (((60, 0),), 1, False)
    assert desk.give_back(lost, [RecordedRow(position, True) for position in lost.positions]) == []


def test_the_finished_part_of_a_shard_is_not_done_again_where_another_part_is_not():
    desk = leaser(8, whole_shards=True)
    whole = desk.end(given(desk.give("a", ["a"], 0.0)).name, 1.0)
    assert whole is not None
    states = [RecordedRow(position, position != 5) for position in whole.positions]
    done, unfit = whole.part([row for row in whole.rows if row.position != 5]), whole.part([whole.rows[5]])
    assert [desk.give_back(part, states) for part in (done, unfit)] == [[], []]
    assert given(desk.give("a", ["a"], 1.0)).given.positions == [5]
    assert desk.give("a", ["a"], 1.0) is None


def test_only_a_lease_that_had_begun_counts_the_loss():
    desk = leaser()
    given(desk.give("a", ["a"], 0.0))
    (lost,) = desk.lose("a", 0.0)
    assert lost.losses == 0


def test_the_row_that_ends_its_workers_is_found_and_given_up():
    """Row 37 ends every worker that has it. The others are done; each loss is one worker."""
    desk, done, losses = leaser(64), set[int](), 0
    for number in range(100):
        worker = f"worker {number}"
        ended = False
        while not ended and (lease := desk.give(worker, [worker], float(number))) is not None:
            desk.begin(lease.name)
            if 37 in lease.given.positions:
                losses += 1
                ended = True
                (lost,) = desk.lose(worker, 0.0)
                gone = desk.give_back(lost, nothing(lost))
                if gone:
                    assert [each.positions for each in gone] == [[37]]
                    done.add(37)
            else:
                done.update(lease.given.positions)
                rows = desk.end(lease.name, number + 0.5)
                assert rows is not None
                desk.give_back(rows, [RecordedRow(position, True) for position in rows.positions])
    assert done == set(range(64))
    assert losses <= 6 + 4  # log2 of the rows, twice together, twice alone


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
    others = given(desk.give("b", ["b", "another"], 1.0))
    assert others.given.positions == [0, 1]
    assert given(desk.give("b", ["b", "another"], 1.0)).given.positions[0] == 5  # the next of the input
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
    again = [lease.again for lease in desk.deal(["fast"], 3.0)]
    assert sum(again) == 6


def test_rows_of_a_worker_that_comes_back_are_not_begun_again():
    desk = leaser(100, room=8)
    first = given(desk.give("slow", ["slow", "fast"], 0.0))
    desk.begin(first.name)
    (lost,) = desk.lose("slow", 2.0)
    desk.give_back(lost, nothing(lost))
    desk.adopt("slow", {first.name: first.given.positions}, 3.0)
    assert [lease.again for lease in desk.deal(["fast"], 3.0)] == [0, 0]


def lost_again(desk: Leaser, worker: str, came: int) -> list[RowSet]:
    """Lets a worker begin the next shard and go, after ``came`` of its rows are recorded. Returns the rows that are given up."""
    lease = given(desk.give(worker, [worker], 0.0))
    desk.begin(lease.name)
    (lost,) = desk.lose(worker, 0.0)
    return desk.give_back(lost, [RecordedRow(position, at < came, (0,) * (at < came)) for at, position in enumerate(lost.positions)])


def test_a_shard_that_gets_further_each_time_is_never_given_up():
    """Deterministic: rows that kill do so at the same place. These workers are killed from outside, each a little later."""
    desk = leaser(100, whole_shards=True)
    assert [lost_again(desk, f"worker {number}", number) for number in range(1, 30)] == [[]] * 29


def test_a_shard_that_ends_four_workers_at_the_same_place_is_given_up():
    desk = leaser(200, whole_shards=True)
    gone = [lost_again(desk, f"worker {number}", 8) for number in range(5)]
    assert [len(each) for each in gone] == [0, 0, 0, 0, 1]  # the first loss is not counted: it got to these rows
    assert gone[-1][0].losses == 4


def test_losses_elsewhere_speak_for_a_shard():
    """Workers are killed at random: of one shard always before anything has come, of the other one always after some rows."""
    desk = leaser(200, whole_shards=True)
    for number in range(20):
        slow, quick = given(desk.give("slow", ["slow", "quick"], 0.0)), given(desk.give("quick", ["slow", "quick"], 0.0))
        for lease in (slow, quick):
            desk.begin(lease.name)
        for worker in ("slow", "quick"):
            (lost,) = desk.lose(worker, 0.0)
            came = number + 1 if lost.shard else 0
            states = [RecordedRow(each, at < came, (0,) * (at < came)) for at, each in enumerate(lost.positions)]
            assert desk.give_back(lost, states) == []


def test_the_loss_of_a_worker_that_comes_back_or_leaves_in_order_does_not_count():
    desk = leaser(10)
    for worker in ("a", "b"):
        desk.begin(given(desk.give(worker, [worker], 0.0)).name)
        (lost,) = desk.lose(worker, 0.0) if worker == "a" else desk.take_back(desk.of(worker), 0.0)
        assert desk.give_back(lost, nothing(lost)) == []
        desk.adopt(worker, {}, 1.0)
    assert given(desk.give("c", ["c"], 2.0)).given.losses == 0


def test_the_worker_comes_back_while_its_rows_are_looked_up():
    desk = leaser(10)
    desk.begin(given(desk.give("a", ["a"], 0.0)).name)
    (lost,) = desk.lose("a", 0.0)
    desk.adopt("a", {}, 1.0)
    assert desk.give_back(lost, nothing(lost)) == []
    assert given(desk.give("c", ["c"], 2.0)).given.losses == 0


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
