"""What each worker of a run does: rows, pace, memory, and when it was heard of last. For progress, and for workers.json.

The driver's thread tells of it, the thread that shows progress reads. Knows no messages.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from ..runs.run_dir import RunDir
from ..runs.throughput import RATE_SECONDS, RecentRate
from ..runs.worker_parts import WorkerPart, worker_parts

RATE_STEP = 0.5  # seconds between two counts of rows by which the pace of progress goes


class WorkerTable:
    """The workers of a run, with what earlier starts have noted of them. Fulfils ``WatchedWorkers``."""

    def __init__(self, run_dir: RunDir):
        self._run_dir = run_dir
        self._parts = {part.worker: part for part in worker_parts(run_dir)}
        self._rates = defaultdict[str, RecentRate](lambda: RecentRate(RATE_SECONDS))
        self._there: list[str] = []
        self._looked: float | None = None
        self._lock = Lock()

    @property
    def count(self) -> int:
        """How many workers are there that can be given rows."""
        return len(self._there)

    def hear(self, worker: str) -> None:
        """Notes a sign of life."""
        with self._lock:
            self._part(worker).seen = datetime.now(UTC)

    def look(self, usable: list[str], busy: Collection[str], now: float) -> None:
        """Notes which workers are there, and which of them have had rows since the last call. now: seconds of any clock."""
        seconds = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        with self._lock:
            self._there = usable
            for worker in usable:
                part, rate = self._part(worker), self._rates[worker]
                part.seconds += seconds if worker in busy else 0.0
                if not rate.marks or now - rate.marks[-1][0] >= RATE_STEP:
                    rate.add(now, part.rows)

    def note_rows(self, worker: str, finished: int) -> None:
        """Notes rows that a worker has finished."""
        with self._lock:
            self._part(worker).rows += finished

    def note_memory(self, worker: str, peak: int | None) -> None:
        """Notes the most bytes that an engine of a worker has used."""
        with self._lock:
            part = self._part(worker)
            part.peak_memory_bytes = max(filter(None, (peak, part.peak_memory_bytes)), default=None)

    def shown(self) -> list[dict[str, Any]]:
        """See ``WatchedWorkers``. Rows a second are those of the last minute."""
        with self._lock:
            there = [(replace(self._part(worker)), self._rates[worker].rate) for worker in self._there]
        return [
            {
                "worker": part.worker,
                "rows": part.rows,
                "rows_per_second": round(rate, 2),
                "peak_memory_bytes": part.peak_memory_bytes,
                "last_seen": part.seen.isoformat(timespec="seconds"),
            }
            for part, rate in there
        ]

    def note(self) -> None:
        """See ``WatchedWorkers``."""
        with self._lock:
            parts = [replace(part) for part in self._parts.values()]
        if parts:
            self._run_dir.write_workers(parts)

    def _part(self, worker: str) -> WorkerPart:
        if (part := self._parts.get(worker)) is None:
            part = self._parts[worker] = WorkerPart(worker, datetime.now(UTC))
        return part
