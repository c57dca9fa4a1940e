"""Reads what each worker of a run has done: from workers.jsonl, and from workers.json, which has its memory and the time it had rows."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from ..files.checked_json import read_document
from ..files.checked_lines import read_lines
from ..store.paths import RunPaths

Ranges = dict[int, list[list[int]]]  # of a shard: the first and the last position of each run of rows


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

    A row that two workers have done counts for both; one that a worker has sent twice counts once. workers.json is written every few
    seconds: where a driver was killed, workers.jsonl knows of more rows, and then counts. Leaves damaged lines out.
    """
    parts, named = dict[str, WorkerPart](), defaultdict[str, Ranges](dict)
    for line in read_lines(paths.workers):
        end = datetime.fromisoformat(line["time"])
        begin = end - timedelta(seconds=line.get("seconds", 0.0))
        part = parts.setdefault(line["worker"], WorkerPart(line["worker"], begin))
        part.again += line.get("again", 0)
        if "rows" in line:
            part.seconds += max(0.0, (end - max(begin, part.seen)).total_seconds())  # it has several leases at a time
            part.seen = max(part.seen, end)
            if "ranges" in line:
                named[part.worker].setdefault(line["shard"], []).extend(line["ranges"])
            else:
                part.rows += line["rows"]
    finished = {worker: sum(map(_count, ranges.values())) for worker, ranges in named.items()}
    for worker, rows in finished.items():
        parts[worker].rows += rows
    for now in _parts_now(paths):
        part = parts.setdefault(now.worker, WorkerPart(now.worker, now.seen))
        if now.rows >= finished.get(now.worker, 0):
            part.rows, part.seconds = now.rows, now.seconds
        part.peak_memory_bytes = now.peak_memory_bytes
        part.seen = max(part.seen, now.seen)
    return sorted(parts.values(), key=lambda part: (-part.rows, part.worker))


def _count(ranges: Sequence[list[int]]) -> int:
    """Returns how many positions lie in any of the ranges, of which both ends belong to them."""
    count, behind = 0, 0  # behind: the first position after all ranges so far
    for first, last in sorted(ranges):
        count += max(0, last + 1 - max(first, behind))
        behind = max(behind, last + 1)
    return count


def _parts_now(paths: RunPaths) -> list[WorkerPart]:
    """Reads workers.json; none where it is missing or damaged."""
    with suppress(FileNotFoundError, ValueError):
        return [WorkerPart.of(each) for each in read_document(paths.workers_now)["workers"]]
    return []
