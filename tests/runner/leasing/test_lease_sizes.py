"""How rows are dealt out, and what it costs: simulated workers, whose time is a number."""

from collections.abc import Callable

import pytest
from mlx_bulk.runner.leasing.lease_sizes import Outlook, WorkerLoad, WorkerPace

from ..support.simulated_workers import SimulatedWorker, Simulation


def lengths_apart(row: int) -> float:
    """From 0.2 to 1.8, 1.0 on average."""
    return 0.2 + row * 7919 % 1601 / 1000


def as_ever(row: int) -> float:
    return 1.0


def over_ideal(rows: int, paces: list[float], lengths: Callable[[int], float] = as_ever, room: int = 32) -> float:
    """Returns the time of a run by the least that these workers could take."""
    workers = [SimulatedWorker(f"w{number}", pace, room) for number, pace in enumerate(paces)]
    seconds = Simulation(rows, workers, lengths).run()
    return seconds * sum(paces) / sum(map(lengths, range(rows)))


def test_batches_stay_full_from_one_lease_to_the_next():
    worker = SimulatedWorker("w", 130)
    seconds = Simulation(7000, [worker], lengths_apart).run()
    assert worker.idle < 0.02 * worker.room * seconds  # the last batch runs empty


@pytest.mark.parametrize("lengths", [as_ever, lengths_apart])
def test_two_workers_take_half_the_time_of_one(lengths: Callable[[int], float]):
    assert over_ideal(7000, [130, 130], lengths) < 1.025


@pytest.mark.parametrize(
    ("room", "rows", "pace", "lengths"),
    [(32, 7000, 130, as_ever), (32, 7000, 130, lengths_apart), (1, 600, 10, lengths_apart), (256, 10000, 50, as_ever)],
)
def test_a_worker_ten_times_slower_costs_less_than_a_tenth(room: int, rows: int, pace: float, lengths: Callable[[int], float]):
    assert over_ideal(rows, [pace, pace, pace / 10], lengths, room) < 1.1


def test_workers_of_eight_paces_end_together():
    assert over_ideal(20000, [10, 20, 30, 40, 50, 60, 70, 80]) < 1.04


def test_the_last_shards_are_divided_among_workers():
    workers = [SimulatedWorker(name, 10, 4) for name in "ab"]
    run = Simulation(6 * 16, workers, rows_per_shard=16, whole_shards=True, speculate=False)
    assert run.run() < 1.02 * 6 * 16 / 20 + 1
    assert run.begun == 6 * 16


def test_leases_grow_to_their_seconds_and_end_small():
    run = Simulation(20000, [SimulatedWorker(name, 100) for name in "ab"], rows_per_shard=100000)
    run.run()
    assert max(run.sizes) == pytest.approx(2000, rel=0.1)  # 20 seconds
    assert min(run.sizes[:-4]) >= 20  # a fifth of a second, but for the last ones, which let both end together


def test_few_rows_are_begun_twice_for_a_slow_worker():
    run = Simulation(7000, [SimulatedWorker("slow", 13), *(SimulatedWorker(name, 130) for name in "ab")])
    run.run()
    assert 7000 <= run.begun < 1.02 * 7000


def test_pace_is_of_the_last_seconds_in_which_there_was_work():
    pace = WorkerPace(20, 8)
    assert pace.rows_a_second(0.0) is None
    pace.begin(0.0)
    pace.add(10, 10.0)
    pace.pause(10.0)
    pace.begin(50.0)
    pace.add(30, 60.0)
    assert pace.rows_a_second(60.0) == 2.0
    pace.add(40, 70.0)
    pace.add(40, 80.0)
    assert pace.rows_a_second(80.0) == 4.0


def test_pace_falls_while_a_worker_is_silent():
    pace = WorkerPace(20, 8)
    pace.begin(0.0)
    pace.add(10, 5.0)
    usual = pace.rows_a_second(9.0)
    assert usual == 2.0
    assert (pace.rows_a_second(105.0) or 0) < 0.11


@pytest.mark.parametrize(
    ("slow", "rows"),
    [
        (WorkerLoad(2.0, 8, 1, 8), 0),  # they are in its batch, and done no later
        (WorkerLoad(2.0, 16, 2, 8), 8),  # half of them wait
        (WorkerLoad(0.2, 8, 1, 8), 8),
        (WorkerLoad(None, 8, 1, 8), 8),  # 10 seconds, and none of them is there
        (WorkerLoad(40.0, 60, 1, 8), 0),  # in a second and a half it does them itself
    ],
)
def test_an_idle_worker_of_two_rows_a_second_takes_what_it_does_long_before(slow: WorkerLoad, rows: int):
    idle = WorkerLoad(2.0, 0, 0, 8)
    assert Outlook(0, [slow, idle], 20).rescue(slow, idle, held=10.0) == rows
