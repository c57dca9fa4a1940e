"""Tests a worker's work on a run with a simulated engine that dies of certain rows, and a driver that comes and goes."""

import json
import math
import pickle
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.jobs.supervision.crash_suspects import Suspects
from mlx_bulk.jobs.worker.engine_process import EngineEnded, EngineProcess, EngineSaid
from mlx_bulk.jobs.worker.run_work import FAULTS, RunWork
from mlx_bulk.runner.cluster.messages import (
    Ack,
    Begun,
    EngineDied,
    Frame,
    Frames,
    FromWorker,
    Lease,
    LeaseDone,
    Message,
    NewestPolicy,
    Piece,
    PieceWanted,
    Place,
    Ready,
    RunFailed,
    RunOffer,
    RunRefused,
    RunStopped,
    StopRun,
)
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.store.shard_ledger import WHOLE

from ...runner.pipeline.test_progress_display import heard

RUN, OTHER = "a" * 16, "b" * 16


def lease(name: str, positions: Iterable[int], run: str = RUN) -> Lease:
    return Lease(run, name, 0, pickle.dumps([Row(at, str(at), {}) for at in positions]))


@dataclass
class Simulation:
    """The worker's work, the engine of the moment, and what the driver has heard."""

    batch: int = 4
    samples: int = 1
    killers: frozenset[int] = frozenset()
    frozen: bool = False
    dies_after: int = 0  # records, once, whatever is in the model, unless it is suspected: it would be found guilty
    records: int = 0
    online: bool = True
    told: list[FromWorker] = field(default_factory=list[FromWorker])
    engines: list["Engine"] = field(default_factory=list["Engine"])

    def __post_init__(self) -> None:
        self.work = RunWork(self._start, SimpleQueue(), self._tell)

    def _start(self, suspects: Suspects, inbox: "SimpleQueue[Any]") -> EngineProcess:
        self.engines.append(Engine(self, suspects))
        return cast(EngineProcess, self.engines[-1])

    def _tell(self, message: FromWorker) -> None:
        if self.online:
            self.told.append(message)

    def reconnect(self) -> None:
        self.online = True
        for message in self.work.held.outbox:
            self._tell(message)

    def run_engine(self) -> None:
        """Runs the engine, and those after its deaths, until nothing is left to do."""
        while self.work.has_engine and self.engines[-1].step():
            pass

    def kinds(self, *left_out: type) -> list[str]:
        return [type(message).__name__ for message in self.told if not isinstance(message, left_out)]

    @property
    def landed(self) -> dict[Place, int]:
        """What the driver has of rows: place -> in how many frames of unlike numbers it came."""
        frames = {message.number: message for message in self.told if isinstance(message, Frames)}
        return Counter(place for message in frames.values() for place in message.resolved)


class Engine:
    """Does the rows of a lease in batches, two leases at a time, and dies with a killer among them."""

    def __init__(self, simulation: Simulation, suspects: Suspects):
        self.simulation, self.suspects = simulation, suspects
        self.orders: dict[str, Any] = json.loads(json.dumps(suspects.orders))
        self.got: deque[Message] = deque()
        self.sent: list[Message] = []
        self.alive = True
        self.number = 0

    def send(self, message: Message) -> None:
        self.got.append(message)

    def go_on(self) -> None: ...

    def end(self) -> None: ...

    def kill(self) -> None:
        self.alive = False

    def say(self, message: Message) -> None:
        self.sent.append(message)
        self.simulation.work.hear(EngineSaid(cast(EngineProcess, self), message))

    def step(self) -> bool:
        """Does one message, or a batch; returns False when there is nothing to do."""
        if not (self.alive and self.got):
            return False
        message = self.got.popleft()
        if isinstance(message, RunOffer):
            self.suspects.receive({"run": message.run, "frozen": self.simulation.frozen, "positions": 1000, "rows": []})
            self.say(Ready(message.run, '{"model": "demo"}'))
        elif isinstance(message, StopRun):
            self.say(RunStopped(message.run))
        elif isinstance(message, Lease):
            self._do([message, *self._more(message)])
        return True

    def _more(self, first: Lease) -> Iterator[Lease]:
        """A second lease runs together with the first, unless one is alone."""
        if self.got and not first.alone and isinstance(self.got[0], Lease) and not self.got[0].alone:
            yield cast(Lease, self.got.popleft())

    def _do(self, leases: list[Lease]) -> None:
        run = leases[0].run
        fatal = {row for row, _ in self.orders["fatal_rows"].get(run, [])}
        for each in leases:
            self.say(Begun(run, each.lease))
        rows = [(each, row.position) for each in leases for row in pickle.loads(each.rows)]
        recorded = {place for each in leases for place in each.recorded}
        for of in [pair for pair in rows if pair[1] in fatal]:
            self._record(of, [(of[1], WHOLE)])
        left = [pair for pair in rows if pair[1] not in fatal]
        most = max(1, self.simulation.batch >> self.orders["batch_halvings"].get(run, 0))
        for at in range(0, len(left), most):
            batch = left[at : at + most]
            self.suspects.receive({"rows": [position for _, position in batch]})
            if any(position in self.simulation.killers for _, position in batch):
                self._die()
                return
            for of in batch:
                places = [(of[1], sample) for sample in range(self.simulation.samples)]
                self._record(of, [place for place in places if place not in recorded])
                if not self.alive:
                    return
        self.suspects.receive({"rows": []})
        for each in leases:
            self.say(LeaseDone(run, each.lease))

    def _record(self, of: tuple[Lease, int], places: list[Place]) -> None:
        for place in places:  # a message a sample, so that a row may be finished in part
            self.number += 1
            admitted = () if place[1] == WHOLE else ((of[1], self.simulation.samples),)
            self.simulation.records += 1
            self.say(Frames(of[0].run, self.number, of[0].shard, admitted, (place,), (Frame("R", b"x", b""),)))
            if self.simulation.records == self.simulation.dies_after and not self.orders["suspect_groups"].get(of[0].run):
                self._die()
                return

    def _die(self) -> None:
        self.alive = False
        self.simulation.work.hear(EngineEnded(cast(EngineProcess, self), -signal.SIGABRT))


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


def test_an_engine_that_refuses_a_run_serves_the_next_one():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.engines[0].say(RunRefused(RUN, ("mlx: found 1, expected 2",)))
    assert simulation.told == [RunRefused(RUN, ("mlx: found 1, expected 2",))]
    assert simulation.work.run is None
    simulation.engines[0].got.clear()
    simulation.work.begin(RunOffer(RUN, b""))  # of a driver that was set right
    simulation.run_engine()
    assert (len(simulation.engines), simulation.told[-1]) == (1, Ready(RUN, '{"model": "demo"}'))


def test_the_same_offer_again_is_answered_from_memory():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.begin(RunOffer(RUN, b""))
    assert simulation.told == [Ready(RUN, '{"model": "demo"}')] * 2
    assert [type(message) for message in simulation.engines[0].sent] == [Ready]


def test_a_stopped_run_sends_what_is_finished_and_takes_nothing_new():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("d-1", [0]))
    simulation.work.stop(StopRun(RUN))
    assert simulation.engines[0].got[-1] == StopRun(RUN)
    simulation.work.take(lease("d-2", [1]))
    assert simulation.engines[0].got[-1] == StopRun(RUN)
    simulation.run_engine()
    assert simulation.landed == {(0, 0): 1}
    assert simulation.told[-1] == RunStopped(RUN)  # after the frames
    assert (simulation.work.run, simulation.work.held.unfinished) == (RUN, {})  # its frames are not acked
    simulation.work.acknowledge(Ack(RUN, 1))
    assert simulation.work.run is None


def test_a_stop_is_answered_once_whatever_the_engine_does():
    simulation = Simulation()
    simulation.work.stop(StopRun(RUN))  # of a driver that this worker refused
    assert simulation.told == [RunStopped(RUN)]
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.stop(StopRun(RUN))
    simulation.work.stop(StopRun(RUN))
    simulation.work.hear(EngineEnded(cast(EngineProcess, simulation.engines[0]), -signal.SIGKILL))
    assert simulation.told[1:] == [Ready(RUN, '{"model": "demo"}'), RunStopped(RUN)]


def test_the_end_of_a_run_is_not_told_to_a_driver_that_has_begun_it_again():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.stop(StopRun(RUN))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    assert simulation.told == [Ready(RUN, '{"model": "demo"}')] * 2


def test_another_run_stops_the_one_before():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.begin(RunOffer(OTHER, b""))
    assert list(simulation.engines[0].got) == [StopRun(RUN), RunOffer(OTHER, b"")]
    simulation.run_engine()
    simulation.engines[0].say(Frames(RUN, 1, 0, (), ((0, 0),), ()))  # late
    assert simulation.told[-1] == Ready(OTHER, '{"model": "demo"}')


def test_a_new_start_of_a_run_tries_its_fatal_rows_again():
    simulation = Simulation(batch=1, killers=frozenset({0}))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("d-1", [0, 1]))
    simulation.run_engine()
    assert simulation.landed == {(0, WHOLE): 1, (1, 0): 1}
    simulation.work.stop(StopRun(RUN))
    engines = len(simulation.engines)
    simulation.work.begin(RunOffer(RUN, b""))
    assert len(simulation.engines) == engines + 1
    assert not simulation.engines[-2].alive
    assert simulation.engines[-1].orders["fatal_rows"] == {}


def test_what_the_engine_wants_is_asked_for_again_on_a_new_connection_until_it_comes():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.online = False
    simulation.engines[-1].say(wanted := PieceWanted(RUN, "3-aa", 0))
    simulation.reconnect()
    simulation.work.ask_again()
    assert simulation.told[-1] == wanted
    simulation.work.hand_on(piece := Piece(RUN, "3-aa", (("a", 1),), 0, b"x", b""))
    assert simulation.engines[-1].got.pop() == piece
    simulation.work.ask_again()
    assert simulation.told.count(wanted) == 1


def test_a_new_engine_hears_of_the_newest_policy_and_asks_for_itself():
    simulation = Simulation(killers=frozenset({1}))
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.hand_on(newest := NewestPolicy(RUN, 7))
    simulation.engines[-1].say(PieceWanted(RUN, "3-aa", 0))
    simulation.engines[-1].got.clear()
    simulation.work.take(lease("d-1", [1, 2]))
    assert simulation.engines[-1].step()  # it dies
    assert simulation.engines[-1].step()  # the next one is ready
    assert simulation.engines[-1].got[0] == newest
    told = len(simulation.told)
    simulation.work.ask_again()
    assert len(simulation.told) == told


def test_a_fault_of_a_machine_makes_no_row_suspect():
    """A group's rank hangs, or its machine is gone, with rows in the model; then the engine dies before it has any."""
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    simulation.run_engine()
    simulation.work.take(lease("a", range(4)))

    def lose(code: int, fault: str) -> None:
        engine = simulation.engines[-1]
        engine.suspects.receive({"rows": [0, 1, 2, 3]} if fault else {})
        simulation.work.hear(EngineEnded(cast(EngineProcess, engine), code, "rank 1 (second)", fault))

    lose(91, "rank 1 (second) saw no step of the others")
    lose(-signal.SIGKILL, "")
    died = [message for message in simulation.told if isinstance(message, EngineDied)]
    assert (died[0].cause, died[0].follows) == ("rank 1 (second) saw no step of the others", "its processes start again")
    assert "before the model had any row" in died[1].cause
    assert simulation.engines[-1].orders["suspect_groups"] == {}
    simulation.run_engine()
    assert simulation.landed == dict.fromkeys([(row, 0) for row in range(4)], 1)


def test_a_group_that_does_not_come_back_gives_the_run_up():
    simulation = Simulation()
    simulation.work.begin(RunOffer(RUN, b""))
    for _ in range(FAULTS + 1):
        simulation.work.hear(
            EngineEnded(cast(EngineProcess, simulation.engines[-1]), 255, "rank 1 (b)", "ssh has no connection to rank 1 (b)")
        )
    assert simulation.kinds() == ["EngineDied"] * FAULTS + ["RunFailed"]
    failed = simulation.told[-1]
    assert isinstance(failed, RunFailed)
    assert failed.message.startswith("ssh has no connection to rank 1 (b); it was so 4 times with no finished row between")
