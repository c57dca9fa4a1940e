"""Rows that end their workers are found; losses from outside speak against no row."""

from mlx_bulk.runner.leasing.leaser import Leaser
from mlx_bulk.runner.leasing.row_set import RowSet
from mlx_bulk.runner.store.shard_ledger import RecordedRow

from .small_leasers import given, leaser, nothing


def lost_again(desk: Leaser, worker: str, came: int) -> list[RowSet]:
    """Lets worker N begin the next shard at N times 2 seconds and go, after ``came`` of its rows are recorded. Returns the rows that are
    given up."""
    now = 2.0 * int(worker.split()[1])
    lease = given(desk.give(worker, [worker], now))
    desk.begin(lease.name)
    (lost,) = desk.lose(worker, now)
    return desk.give_back(lost, [RecordedRow(position, at < came, (0,) * (at < came)) for at, position in enumerate(lost.positions)])


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
