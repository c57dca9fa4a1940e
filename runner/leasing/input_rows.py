"""The rows of the input that no worker was given yet, in order.

Records of some may come before they are read: of workers that went on while the driver was away. What is left of these is looked up.
"""

from collections.abc import Iterable, Iterator

from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout, Place
from ..pipeline.row_requests import RecordedRows
from ..store.shard_ledger import WHOLE
from .row_set import RowSet


class InputRows:
    """Rows that are taken in turn, each set of them from one shard. recorded: what earlier sessions have of them.

    next: the first row, None after the last. whole_shards: rows of a shard stay together, done or not.
    """

    def __init__(self, rows: Iterator[Row | BadRow], layout: Layout, recorded: RecordedRows, whole_shards: bool):
        self._layout, self._recorded, self._whole_shards = layout, recorded, whole_shards
        self._rows = rows if whole_shards else (row for row in rows if not self._needs_nothing(row.position))
        self._early = set[int]()  # positions of rows that are not read yet, of which records have come
        self._come: list[RowSet] = []  # those that are read by now
        self.next = next(self._rows, None)

    def note(self, admitted: Iterable[Place], resolved: Iterable[Place]) -> None:
        """Notes rows of which something has come."""
        if self.next is not None:
            self._early.update(position for position, _ in (*admitted, *resolved) if position >= self.next.position)

    def take(self, most: int) -> list[Row | BadRow]:
        """Returns up to ``most`` rows of the shard whose turn it is; all of it where shards stay together."""
        taken: list[Row | BadRow] = []
        while self.next is not None and (self._whole_shards or len(taken) < most):
            if taken and self._layout.shard_of(self.next.position) != self._layout.shard_of(taken[0].position):
                break
            taken.append(self.next)
            self.next = next(self._rows, None)
        return taken

    def without_early(self, rows: list[Row | BadRow]) -> RowSet | None:
        """Returns the rows of which nothing has come, with what was recorded before; None where there are none. ``come`` has the others."""
        early = {row.position for row in rows} & self._early
        self._early -= early
        if early and self._whole_shards:
            early = {row.position for row in rows}
        if early:
            self._come.append(self._set([row for row in rows if row.position in early]))
        new = [row for row in rows if row.position not in early]
        return self._set(new, tuple((row.position, sample) for row in new for sample in self._samples(row.position))) if new else None

    def come(self) -> list[RowSet]:
        """Takes away the rows of which something had come before they were read."""
        come, self._come = self._come, []
        return come

    def _set(self, rows: list[Row | BadRow], recorded: tuple[Place, ...] = ()) -> RowSet:
        return RowSet(self._layout.shard_of(rows[0].position), rows, recorded)

    def _needs_nothing(self, position: int) -> bool:
        return self._recorded.failed(position) or self._recorded.resolved(position)

    def _samples(self, position: int) -> list[int]:
        whole = [WHOLE] if self._recorded.failed(position) else []
        return whole + sorted(self._recorded.samples(position))
