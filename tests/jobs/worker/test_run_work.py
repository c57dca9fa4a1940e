"""Tests a worker's work on a run whose engine dies of certain rows, or ends by itself."""

import math
import signal
from collections import Counter
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.jobs.worker.engine_process import EngineEnded, EngineProcess
from mlx_bulk.runner.cluster.messages import (
    Ack,
    Begun,
    EngineDied,
    Frames,
    Lease,
    LeaseDone,
    Ready,
    RunFailed,
    RunOffer,
)
from mlx_bulk.runner.store.shard_ledger import WHOLE

from ...runner.pipeline.test_progress_display import heard
from ..support.simulated_engine import OTHER, RUN, Simulation, lease


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(1, 3),
    st.sets(st.integers(0, 35), max_size=3),
    st.integers(0, 40),
    st.booleans(),
)
def test_every_row_lands_once_and_killers_as_failures(
    sizes: list[int], batch: int, samples: int, killers: set[int], dies_after: int, online: bool
):
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    killers = {row for row in killers if row < ends[-1]}
    simulation = Simulation(batch, samples, frozenset(killers), dies_after=dies_after)
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.online = online
    for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        simulation.work.take(lease(f"d-{number}", range(end - size, end)))
    simulation.run_engine()
    if not online:
        simulation.reconnect()
    expected = {(row, WHOLE) if row in killers else (row, sample) for row in range(ends[-1]) for sample in range(samples)}
    assert simulation.landed == dict.fromkeys(expected, 1)
    assert Counter(message.lease for message in simulation.told if isinstance(message, LeaseDone)) == {
        f"d-{number}": 1 for number in range(len(sizes))
    }
    for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        before = simulation.told[: simulation.told.index(LeaseDone(RUN, f"d-{number}"))]
        rows = {row for message in before if isinstance(message, Frames) for row, _ in message.resolved}
        assert rows >= set(range(end - size, end))
    assert all(number <= 1 for number in Counter(message for message in simulation.told if isinstance(message, Begun)).values())
    assert len(simulation.engines) - 1 <= 1 + len(killers) * (math.ceil(math.log2(min(batch, ends[-1]))) + 3)
    assert simulation.work.held.unfinished.keys() == {f"d-{number}" for number in range(len(sizes))}
    simulation.work.acknowledge(Ack(RUN, 1000))
    assert not simulation.work.held.unacked
    assert [rows for rows in simulation.work.held.unfinished.values() if rows] == []


def test_the_driver_hears_of_each_death_and_of_one_ready():
    simulation = Simulation(batch=4, killers=frozenset({2}))
    simulation.work.begin(RunOffer(RUN, b""))
    with heard() as handler:
        simulation.run_engine()
        simulation.work.take(lease("d-1", range(4)))
        simulation.run_engine()
    died = [message for message in simulation.told if isinstance(message, EngineDied)]
    assert died[0] == EngineDied(
        RUN, "the process died of SIGABRT with 4 rows in the model", "it starts again and runs them apart, at most 2 at once"
    )
    assert died[-1].follows == "it goes to errors/"
    assert len(died) == 3  # with four rows, with two, alone
    assert simulation.kinds(EngineDied, Frames) == ["Ready", "Begun", "LeaseDone"]
    assert handler.messages[0] == f"run {RUN[:8]}: ready: demo"
    assert handler.messages[1] == f"{died[0].cause}: {died[0].follows}"


def test_a_lease_that_comes_while_the_engine_starts_again_is_done():
    simulation = Simulation(batch=2, killers=frozenset({1}))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.engines[-1].step()
    simulation.work.take(lease("d-1", [0, 1]))
    simulation.engines[-1].step()  # dies
    assert len(simulation.engines) == 2
    simulation.work.take(lease("d-2", [2, 3]))
    simulation.run_engine()
    assert simulation.landed == {(0, 0): 1, (1, WHOLE): 1, (2, 0): 1, (3, 0): 1}


def test_a_frozen_lease_is_run_again_as_it_was():
    simulation = Simulation(batch=2, killers=frozenset({3}), frozen=True)
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("d-1", range(4)))
    assert simulation.engines[-1].step()
    assert simulation.engines[-1].got[-1] == RunOffer(RUN, b"")
    simulation.engines[-1].step()
    again = simulation.engines[-1].got[0]
    assert isinstance(again, Lease)
    assert (again.lease, again.rows, again.recorded) == ("d-1", lease("d-1", range(4)).rows, ((0, 0), (1, 0)))


def test_a_run_that_no_start_helps_fails_and_the_worker_stays():
    simulation = Simulation(batch=2, killers=frozenset({1}), frozen=True)
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("d-1", [0, 1]))
    simulation.run_engine()
    assert simulation.kinds(Frames) == ["Ready", "Begun", "EngineDied", "RunFailed"]
    failed = simulation.told[-1]
    assert isinstance(failed, RunFailed)
    assert (failed.kind, "twice with the same 2 rows in the model (0, 1)" in failed.message) == ("ModelError", True)
    assert (simulation.work.run, simulation.work.held.unfinished) == (None, {})
    simulation.work.begin(RunOffer(OTHER, b""))
    simulation.run_engine()
    assert simulation.told[-1] == Ready(OTHER, '{"model": "demo"}')


@pytest.mark.parametrize("code", [1, -signal.SIGTERM])
def test_an_engine_that_ends_by_itself_fails_the_run(code: int):
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.hear(EngineEnded(cast(EngineProcess, simulation.engines[0]), code))
    assert simulation.told[-1] == RunFailed(
        RUN, "ModelError", f"the engine's process ended by itself, with code {code}, in the middle of a run"
    )
