"""Writes workers.jsonl: which worker has done which rows, and how many rows were begun more than once."""

from collections.abc import Sequence, Set

from ..runs.run_dir import RunDir
from .open_lease import OpenLease

LOST = "lost worker"  # which had begun them
SLOW = "slow worker"  # has them, too
ENGINE = "engine died"  # of the same worker
RESTART = "driver started again"  # and gave them out before their worker had joined, or a shard with records of an earlier start
REFUSED = "records refused"  # they were damaged, or of another policy


class LeaseLog:
    """The workers.jsonl of a run."""

    def __init__(self, run_dir: RunDir):
        self._run_dir = run_dir

    def note_done(self, lease: OpenLease, positions: Set[int], now: float) -> None:
        """Notes rows of a lease that its worker has just finished, as ``ranges`` of positions, both ends included."""
        line = {"worker": lease.worker, "shard": lease.given.shard, "rows": len(positions), "seconds": round(now - lease.sent, 3)}
        self._run_dir.add_lease(line | {"ranges": _ranges(sorted(positions))})

    def note_again(self, worker: str, rows: int, cause: str) -> None:
        """Notes rows that a worker begins and that were begun before, there or elsewhere; 0 for none. They may be fewer.

        cause: LOST, SLOW, ENGINE, RESTART or REFUSED.
        """
        if rows:
            self._run_dir.add_lease({"worker": worker, "again": rows, "cause": cause})


def _ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and the last of each row of neighbours."""
    starts = [at for at, position in enumerate(positions) if not at or position != positions[at - 1] + 1]
    return [(positions[start], positions[end - 1]) for start, end in zip(starts, [*starts[1:], len(positions)], strict=True)]
