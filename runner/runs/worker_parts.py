"""Reads from workers.jsonl what each worker of a run has done. Knows no worker that is at work now."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ..files.checked_lines import read_lines
from ..store.paths import RunPaths


@dataclass(slots=True)
class WorkerPart:
    """What one worker has done. rows: of its finished leases; seconds: in which it had any of them; seen: when it last ended one.

    again: rows that it began and that were begun before, there or elsewhere; they may be fewer.
    """

    worker: str
    seen: datetime
    rows: int = 0
    seconds: float = 0.0
    again: int = 0

    @property
    def rows_per_second(self) -> float | None:
        """The rows by the seconds; None where none have passed."""
        return self.rows / self.seconds if self.seconds > 0 else None


def worker_parts(paths: RunPaths) -> list[WorkerPart]:
    """Returns the workers of all sessions, those with the most rows first; none for a run without workers.

    A row that two workers have done counts for both. Leaves damaged lines out.
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
    return sorted(parts.values(), key=lambda part: (-part.rows, part.worker))
