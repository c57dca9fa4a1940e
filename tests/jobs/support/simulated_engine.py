"""A simulated engine that dies of certain rows, the worker's work on a run that it serves, and what the driver hears of both."""

import json
import pickle
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, cast

from mlx_bulk.jobs.supervision.crash_suspects import Suspects
from mlx_bulk.jobs.worker.engine_process import EngineEnded, EngineProcess, EngineSaid
from mlx_bulk.jobs.worker.run_work import RunWork
from mlx_bulk.runner.cluster.messages import (
    Begun,
    Frame,
    Frames,
    FromWorker,
    Lease,
    LeaseDone,
    Message,
    Place,
    Ready,
    RunOffer,
    RunStopped,
    StopRun,
)
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.store.shard_ledger import WHOLE

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
