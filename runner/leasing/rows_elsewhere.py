"""Rows that workers have since before this start, or since before they were away: they are given to nobody else meanwhile."""

from collections.abc import Iterable
from itertools import zip_longest

from ..core.requests import BadRow, Row
from .open_lease import OpenLease


class RowsElsewhere:
    """Such rows. leases: all that are open, by name; the caller changes it. whole_shards: rows of a shard are not divided."""

    def __init__(self, leases: dict[str, OpenLease], whole_shards: bool):
        self._leases, self._whole_shards = leases, whole_shards
        self._names: dict[int, str] = {}  # of the lease that a row is in, by position

    def add(self, lease: str, positions: Iterable[int]) -> None:
        """Notes rows of a lease. What they hold is known once they are read again."""
        self._names.update(dict.fromkeys(positions, lease))

    def forget_ended(self) -> None:
        """Forgets the rows of leases that are open no more."""
        self._names = {position: name for position, name in self._names.items() if name in self._leases}

    def without(self, rows: list[Row | BadRow]) -> list[Row | BadRow]:
        """Returns the rows that are in no such lease; the others are kept with theirs. A whole shard is not divided."""
        names = [self._names.pop(row.position, None) for row in rows] if self._names else []
        if self._whole_shards and (held := [name for name in names if name in self._leases]):
            names = [held[0]] * len(rows)
        for row, name in zip(rows, names, strict=False):
            if name in self._leases:
                assert name is not None
                self._leases[name].given.rows.append(row)
        return [row for row, name in zip_longest(rows, names) if name not in self._leases]
