"""Rows that a worker has, as far as it has told of them. Reads no clock."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..core.shard_layout import Place
from ..store.shard_ledger import WHOLE
from .row_set import RowSet


@dataclass(slots=True)
class OpenLease:
    """Rows that a worker has. sent: when (seconds of any clock); begun: its engine has taken them.

    left: positions of rows that are not finished, with the number of records to come; None before the worker has told it. copied:
    positions of rows that a second worker has, too. again, cause: how many rows, at most, were begun before, and why. policy: its name,
    where it was sent with one. told: positions that its worker has told, which has it since before this start, or before it was away.
    """

    name: str
    worker: str
    given: RowSet
    sent: float
    begun: bool = False
    again: int = 0
    cause: str = ""
    policy: str | None = None
    told: Sequence[int] = ()
    left: dict[int, int | None] = field(default_factory=dict[int, int | None])
    copied: set[int] = field(default_factory=set[int])

    @property
    def positions(self) -> list[int]:
        """The rows' positions, as far as they are known: those that the worker has told may not be read again yet."""
        return sorted({*self.given.positions, *self.told})

    def note(self, admitted: Collection[Place], resolved: Collection[Place]) -> set[int]:
        """Notes what a worker has sent of these rows: how many records each has in all, and those that are there.

        Returns the positions of rows that are finished with it.
        """
        recorded = Counter(position for position, _ in self.given.recorded)
        touched = {position for position, _ in (*admitted, *resolved)} & self.left.keys()
        for position, samples in admitted:
            if position in self.left:
                self._expect(position, samples - recorded[position])
        for position, sample in resolved:
            if position in self.left:
                to_come = self.left[position]
                self._expect(position, 0 if sample == WHOLE or to_come is None else to_come - 1)
        return touched - self.left.keys()

    def _expect(self, position: int, records: int) -> None:
        if records > 0:
            self.left[position] = records
        else:
            del self.left[position]
