"""Workers that a leaser gives rows to, without clocks, threads and processes: time is a number that goes on from event to event.

Each has an engine with ``room`` slots. A row stays in its slot for ``room / pace`` seconds, times what ``lengths`` says of it. A worker
tells of finished rows every two seconds, and when a lease is done.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.leasing.lease_sizes import REPORT_SECONDS
from mlx_bulk.runner.leasing.leaser import Leaser
from mlx_bulk.runner.leasing.open_lease import OpenLease
from mlx_bulk.runner.pipeline.row_requests import RecordedRows
from mlx_bulk.runner.store.recovery import Recovered

WAY_SECONDS = 0.02  # of a message, there or back


@dataclass
class SimulatedWorker:
    """pace: rows a second with a full batch; room: slots. idle: slot seconds without a row."""

    name: str
    pace: float
    room: int = 32
    begin: float = 0.0
    queue: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    under_way: int = 0
    untold: list[int] = field(default_factory=list[int])
    left: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    idle: float = 0.0
    seen: float = 0.0


class Simulation:
    """A run of ``rows`` rows, each with one record. done: when each row was finished first; begun: how many rows engines have begun."""

    def __init__(
        self,
        rows: int,
        workers: Sequence[SimulatedWorker],
        lengths: Callable[[int], float] = lambda row: 1.0,
        *,
        rows_per_shard: int = 1024,
        lease_seconds: float = 20,
        whole_shards: bool = False,
        speculate: bool = True,
    ):
        layout = Layout(rows, rows_per_shard)
        recorded = RecordedRows(Recovered(frozenset(), {}, {}, {}, {}, 0, 0, 0), layout)
        given = (Row(position, str(position), {}) for position in range(rows))
        self.leaser = Leaser(
            given,
            layout,
            recorded,
            session="s",
            left=rows,
            lease_seconds=lease_seconds,
            whole_shards=whole_shards,
            speculate=speculate,
        )
        self.workers = {worker.name: worker for worker in workers}
        self.done: dict[int, float] = {}
        self.begun = 0
        self.sizes: list[int] = []
        self._rows, self._lengths = rows, lengths
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0

    def run(self) -> float:
        """Returns the seconds until the last row was there."""
        for worker in self.workers.values():
            self._at(worker.begin, lambda now, worker=worker: self._ready(worker, now))
        self._at(0.2, self._look)
        now = 0.0
        while len(self.done) < self._rows:
            now, _, event = heapq.heappop(self._events)
            event(now)
        return now

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, event))

    def _ready(self, worker: SimulatedWorker, now: float) -> None:
        self.leaser.equip(worker.name, worker.room)
        worker.seen = now
        self._at(now + REPORT_SECONDS, lambda now: self._report(worker, now))
        self._deal(now)

    def _look(self, now: float) -> None:
        self._deal(now)
        self._at(now + 0.2, self._look)

    def _deal(self, now: float) -> None:
        """What the driver does after events."""
        usable = [worker.name for worker in self.workers.values() if worker.begin <= now]
        for lease in self.leaser.deal(usable, now):
            self._send(lease, now)
        for name in usable:
            if (late := self.leaser.late(name, usable, now)) is not None:
                lease, rows = late
                left = [row for row in rows.rows if row.position not in self.done]
                if left:
                    self._send(self.leaser.copy(rows.part(left), name, now), now)
                else:
                    self.leaser.keep(lease.name, rows)

    def _send(self, lease: OpenLease, now: float) -> None:
        self.sizes.append(len(lease.given.rows))
        self._at(now + WAY_SECONDS, lambda now: self._take(self.workers[lease.worker], lease.name, lease.given.positions, now))

    def _take(self, worker: SimulatedWorker, lease: str, positions: list[int], now: float) -> None:
        self.leaser.begin(lease)
        worker.left[lease] = set(positions)
        worker.queue += [(lease, position) for position in positions]
        self._fill(worker, now)

    def _fill(self, worker: SimulatedWorker, now: float) -> None:
        worker.idle += (now - worker.seen) * (worker.room - worker.under_way)
        worker.seen = now
        while worker.queue and worker.under_way < worker.room:
            lease, position = worker.queue.pop(0)
            worker.under_way += 1
            self.begun += 1
            seconds = self._lengths(position) * worker.room / worker.pace
            self._at(now + seconds, lambda now, lease=lease, position=position: self._finish(worker, lease, position, now))

    def _finish(self, worker: SimulatedWorker, lease: str, position: int, now: float) -> None:
        worker.untold.append(position)
        worker.left[lease].discard(position)
        ended = lease if not worker.left[lease] else None
        self._fill(worker, now)
        worker.under_way -= 1
        self._fill(worker, now)
        if ended:
            self._tell(worker, ended, now)

    def _report(self, worker: SimulatedWorker, now: float) -> None:
        if worker.untold:
            self._tell(worker, None, now)
        self._at(now + REPORT_SECONDS, lambda now: self._report(worker, now))

    def _tell(self, worker: SimulatedWorker, ended: str | None, now: float) -> None:
        told, worker.untold = worker.untold, []
        self._at(now + WAY_SECONDS, lambda now: self._hear(worker, told, ended, now))

    def _hear(self, worker: SimulatedWorker, told: list[int], ended: str | None, now: float) -> None:
        for position in told:
            self.done.setdefault(position, now)
        places = [(position, 0) for position in told]
        self.leaser.note(worker.name, [(position, 1) for position in told], places, now)
        if ended is not None:
            self.leaser.end(ended, now)
        self._deal(now)
