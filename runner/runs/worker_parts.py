"""Reads what each worker of a run has done: from workers.jsonl, and from workers.json, which has its memory and the time it had rows."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from ..files.checked_json import read_document
from ..files.checked_lines import read_lines
from ..store.paths import RunPaths


@dataclass(slots=True)
class WorkerPart:
    """What one worker has done. rows: those that it has finished; seconds: in which it had any; seen: when it was last heard of.

    again: rows that it began and that were begun before, there or elsewhere; they may be fewer. peak_memory_bytes: the most memory that
    its engine has used, None where that is unknown.
    """

    worker: str
    seen: datetime
    rows: int = 0
    seconds: float = 0.0
    again: int = 0
    peak_memory_bytes: int | None = None

    @property
    def rows_per_second(self) -> float | None:
        """The rows by the seconds; None where none have passed."""
        return self.rows / self.seconds if self.seconds > 0 else None

    def values(self) -> dict[str, Any]:
        """Returns what workers.json holds of this worker."""
        own = {"worker": self.worker, "rows": self.rows, "seconds": round(self.seconds, 3)}
        return own | {"peak_memory_bytes": self.peak_memory_bytes, "seen": self.seen.isoformat(timespec="seconds")}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Returns the worker of which workers.json holds these values."""
        seen = datetime.fromisoformat(values["seen"])
        return cls(values["worker"], seen, values["rows"], values["seconds"], peak_memory_bytes=values["peak_memory_bytes"])


def worker_parts(paths: RunPaths) -> list[WorkerPart]:
    """Returns the workers of all sessions, those with the most rows first; none for a run without workers.

    A row that two workers have done counts for both. What workers.json says of a worker counts, even where it is some seconds old:
    workers.jsonl may have rows twice that were sent twice. Leaves damaged lines out.
    """
    parts: dict[str, WorkerPart] = {}
    for line in read_lines(paths.workers):
        end = datetime.fromisoformat(line["time"])
        begin = end - timedelta(seconds=line.get("seconds", 0.0))
        part = parts.setdefault(line["worker"], WorkerPart(line["worker"], begin))
        part.again += line.get("again", 0)
        if "rows" in line:
            part.seconds += max(0.0, (end - max(begin, part.seen)).total_seconds())  # it has several leases at a time
            part.rows += line["rows"]
            part.seen = max(part.seen, end)
    for now in _parts_now(paths):
        part = parts.setdefault(now.worker, WorkerPart(now.worker, now.seen))
        part.rows, part.seconds, part.peak_memory_bytes = now.rows, now.seconds, now.peak_memory_bytes
        part.seen = max(part.seen, now.seen)
    return sorted(parts.values(), key=lambda part: (-part.rows, part.worker))


def _parts_now(paths: RunPaths) -> list[WorkerPart]:
    """Reads workers.json; none where it is missing or damaged."""
    with suppress(FileNotFoundError, ValueError):
        return [WorkerPart.of(each) for each in read_document(paths.workers_now)["workers"]]
    return []
