"""Workers without a model, for benchmarks of a run over workers: many in one process, each on a connection of its own to a real driver.

An engine is a number of slots; a row stays in its slot for as long as the worker's pace says, and its record is filled with letters.
Records, frames and messages are real ones. Started as a process of its own by ``cluster_scale.py`` and ``cluster_slow_worker.py``.
"""

import heapq
import json
import os
import pickle
import sys
import threading
import time
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

REPORT_SECONDS = 2.0  # as a real worker
LOOK_SECONDS = 0.25  # for rows that are finished


@dataclass
class Slots:
    """The engine: rows and when they will be finished. pace: rows a second with all slots in use."""

    pace: float
    room: int
    free: list[float] = field(default_factory=list[float])
    rows: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def add(self, positions: list[int], now: float) -> None:
        """Takes rows in turn."""
        self.free = self.free or [now] * self.room
        for position in positions:
            done = max(now, heapq.heappop(self.free)) + self.room / self.pace
            heapq.heappush(self.free, done)
            heapq.heappush(self.rows, (done, position))

    def finished(self, now: float) -> list[int]:
        """Returns the rows that are done by now."""
        found: list[int] = []
        while self.rows and self.rows[0][0] <= now:
            found.append(heapq.heappop(self.rows)[1])
        return found

    @property
    def next(self) -> float | None:
        """When the next row is done."""
        return self.rows[0][0] if self.rows else None


class SimulatedAgent:
    """A worker. ``row_bytes``: letters in each text column of a record."""

    def __init__(self, address: str, name: str, pace: float, room: int, row_bytes: int):
        from mlx_bulk.runner.network.dask_link import DriverLink

        self._link, self._name = DriverLink(address), name
        self._slots, self._row_bytes = Slots(pace, room), row_bytes
        self._sink: Any = None
        self._record: dict[str, Any] = {}
        self._run, self._reported = "", 0.0

    def work(self) -> None:
        """Works until the driver has gone."""
        from mlx_bulk.runner.cluster.messages import Hello

        while True:
            try:
                self._link.connect()
                break
            except OSError:
                time.sleep(0.3)
        self._link.send(Hello(self._name, "here", {}))
        try:
            while True:
                due = min(self._slots.next or time.monotonic() + 1.0, time.monotonic() + 1.0)
                message = self._link.receive(max(0.0, min(due - time.monotonic(), 1.0)) + LOOK_SECONDS / 10)
                if message is not None:
                    self._obey(message)
                self._finish(time.monotonic())
        except EOFError:
            self._link.close()

    def _obey(self, message: Any) -> None:
        from mlx_bulk.runner.cluster.messages import Begun, Dismiss, Lease, Ready, RunOffer, RunStopped, StopRun
        from mlx_bulk.runner.worker.lease_sink import LeaseSink

        match message:
            case RunOffer(run):
                schema, layout = described(message)
                self._run, self._sink = run, LeaseSink(run, schema, layout, self._link.send)
                self._record = {each.name: self._filled(each) for each in schema if each.name not in ("row", "round", "sample")}
                facts = {"batch": {"rows": self._slots.room}, "dtype": "none", "device": "simulated", "model": "none"}
                self._link.send(Ready(run, json.dumps(facts)))
            case Lease():
                rows = [row.position for row in pickle.loads(message.rows)]
                self._sink.expect(message.lease, message.shard, rows, message.recorded)
                self._link.send(Begun(self._run, message.lease))
                self._slots.add(rows, time.monotonic())
            case StopRun(run):
                self._slots.rows.clear()
                self._link.send(RunStopped(run))
            case Dismiss():
                raise EOFError
            case _:
                pass

    def _finish(self, now: float) -> None:
        from mlx_bulk.runner.cluster.messages import Figures

        for position in self._slots.finished(now):
            self._sink.admit(position, 1)
            self._sink.add(position, 0, dict(self._record))
        if self._sink is not None and now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self._sink.push()
            self._link.send(Figures(self._run, {"steps": 0}))

    def _filled(self, column: "pa.Field[Any]") -> Any:
        """Returns a value of a column: letters where it holds text."""
        kinds = pa.types
        if kinds.is_large_string(column.type):
            return "x" * self._row_bytes
        if kinds.is_struct(column.type):
            return {each.name: self._filled(each) for each in column.type}
        return [] if kinds.is_list(column.type) else "x" if kinds.is_string(column.type) else pa.scalar(0).cast(column.type).as_py()


_SEEN: dict[str, Any] = {}
_LOCK = threading.Lock()


def described(offer: Any) -> Any:
    """Returns the schema of a run's records and its layout; of one run they are made once."""
    from mlx_bulk.jobs.kinds import KINDS
    from mlx_bulk.runner.cluster.description import RunDescription
    from mlx_bulk.runner.pipeline.run_spec import RunSpec

    with _LOCK, TemporaryDirectory() as folder:
        if offer.run not in _SEEN:
            told = RunDescription.of_offer(offer)
            config = told.parsed(folder)
            _SEEN[offer.run] = RunSpec.of_scan(told.scan, config, KINDS[config.job]).job.schema, told.layout
        return _SEEN[offer.run]


def main() -> None:
    """Runs the agents that standard input describes: JSON with the arguments of each ``SimulatedAgent``."""
    report = threading.excepthook
    threading.excepthook = lambda failed: (report(failed), os._exit(1))[1]  # the benchmark is over then
    agents = [SimulatedAgent(**each) for each in json.loads(sys.stdin.readline())]
    threads = [threading.Thread(target=agent.work) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
    os._exit(0)  # as a real worker's processes: threads of libraries may fail while they are unloaded
