"""Rows that a worker has begun and another one begins again: how many, at most, as far as the driver knows. Reads no clock."""

from collections.abc import Collection, Iterable, Sequence

from .lease_sizes import WorkerPace
from .open_lease import OpenLease


class BegunRows:
    """Rows that were begun in vain. whole_shards: an engine takes all rows of a lease at once."""

    def __init__(self, whole_shards: bool):
        self._whole_shards = whole_shards
        self._gone: dict[int, str] = {}  # why, by position: see ``lease_log``

    def under_way(self, leases: Sequence[OpenLease], pace: WorkerPace, now: float) -> list[int]:
        """Returns the rows of a worker's leases that it has begun and not finished; they may be fewer.

        Its engine has begun no more than it has room for, beside what it has finished since it told of some.
        """
        begun = [lease for lease in leases if lease.begun]
        if self._whole_shards:
            return [position for lease in begun for position in lease.positions]
        rows = [position for lease in begun for position in lease.left]
        untold = pace.untold(now)
        return rows if untold is None else rows[: pace.room + untold]

    def lose(self, positions: Iterable[int], cause: str) -> None:
        """Notes rows that were begun, and that somebody is to begin again."""
        self._gone.update(dict.fromkeys(positions, cause))

    def find(self, positions: Iterable[int]) -> None:
        """Notes that a worker has come back with these rows: it goes on with them."""
        for position in positions:
            self._gone.pop(position, None)

    def begin_again(self, positions: Collection[int]) -> tuple[int, str]:
        """Returns how many of the rows, which a worker gets now, were begun before, and why: all of a shard where some were."""
        causes = [cause for position in positions if (cause := self._gone.pop(position, None)) is not None]
        if not causes:
            return 0, ""
        return len(positions) if self._whole_shards else len(causes), max(set(causes), key=causes.count)
