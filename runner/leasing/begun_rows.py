"""Rows that a worker has begun and another one begins again: how many, at most, as far as the driver knows. Reads no clock."""

from collections.abc import Iterable, Sequence

from .lease_sizes import WorkerPace
from .open_lease import OpenLease


class BegunRows:
    """Rows, by position, that workers had begun which have gone. whole_shards: an engine takes all rows of a lease at once."""

    def __init__(self, whole_shards: bool):
        self._whole_shards = whole_shards
        self._gone = set[int]()

    def under_way(self, leases: Sequence[OpenLease], pace: WorkerPace, now: float) -> list[int]:
        """Returns the rows of a worker's leases that it has begun and not finished; they may be fewer.

        Its engine has begun no more than it has room for, beside what it has finished since it told of some.
        """
        begun = [lease for lease in leases if lease.begun]
        if self._whole_shards:
            return [position for lease in begun for position in lease.given.positions]
        rows = [position for lease in begun for position in lease.left]
        untold = pace.untold(now)
        return rows if untold is None else rows[: pace.room + untold]

    def lose(self, positions: Iterable[int]) -> None:
        """Notes rows that a worker had begun which has gone."""
        self._gone.update(positions)

    def find(self, positions: Iterable[int]) -> None:
        """Notes that a worker has come back with these rows: it goes on with them."""
        self._gone.difference_update(positions)

    def begin_again(self, positions: Iterable[int]) -> int:
        """Returns how many of the rows, which a worker gets now, were begun before."""
        again = self._gone.intersection(positions)
        self._gone -= again
        return len(again)
