"""Rows of a slow worker that an idle one is to do, too. Reads no clock."""

from collections.abc import Callable, Mapping

from ..core.requests import BadRow, Row
from .lease_sizes import Outlook, WorkerLoad
from .open_lease import OpenLease


def late_rows(
    held: Mapping[str, Mapping[str, OpenLease]],
    load: Callable[[str], WorkerLoad],
    outlook: Outlook,
    idle: WorkerLoad,
    now: float,
    whole_shards: bool,
) -> tuple[OpenLease, list[Row | BadRow]] | None:
    """Returns the lease in which most rows are late, and these rows; None where all are in time.

    held: the leases of all other workers, by worker and name. load: what a worker has to do, without rows that a second one has.
    """
    best: tuple[int, OpenLease] | None = None
    for worker, leases in held.items():
        open_rows = [lease for lease in leases.values() if lease.left.keys() - lease.copied and lease.given.rows]
        if not open_rows:
            continue
        newest = open_rows[-1]
        least = len(newest.given.rows) if whole_shards else 0
        size = outlook.rescue(load(worker), idle, now - newest.sent, least)
        if size and (best is None or size > best[0]):
            best = size, newest
    if best is None:
        return None
    size, lease = best
    if whole_shards:
        return lease, lease.given.rows
    rows = [row for row in lease.given.rows if row.position in lease.left and row.position not in lease.copied][-size:]
    return (lease, rows) if rows else None
