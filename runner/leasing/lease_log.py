"""Writes workers.jsonl: who has done the rows of each lease, and how many rows were begun more than once."""

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

    def note_done(self, lease: OpenLease, now: float) -> None:
        """Notes a lease that is done."""
        positions = lease.positions
        line = {"worker": lease.worker, "shard": lease.given.shard, "rows": len(positions), "seconds": round(now - lease.sent, 3)}
        self._run_dir.add_lease(line | ({"first": positions[0], "last": positions[-1]} if positions else {}))

    def note_again(self, worker: str, rows: int, cause: str) -> None:
        """Notes rows that a worker begins and that were begun before, there or elsewhere; 0 for none. They may be fewer.

        cause: LOST, SLOW, ENGINE, RESTART or REFUSED.
        """
        if rows:
            self._run_dir.add_lease({"worker": worker, "again": rows, "cause": cause})
