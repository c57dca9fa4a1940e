"""Rows that have come back from workers, and wait for another one: those with which workers have gone are taken apart, then run alone."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ..core.requests import BadRow, Row
from .row_set import LOSSES_ALONE, LOSSES_TOGETHER, RowSet

_MOST_HELD_UP = 4096  # rows that wait for a worker with more room; while there are more, other workers take no new ones


class WaitingRows:
    """Sets of rows in the order in which they go out. suits: says whether some may go to a worker. whole_shards: none is divided."""

    def __init__(self, suits: Callable[[str, RowSet], bool], whole_shards: bool):
        self._suits, self._whole_shards = suits, whole_shards
        self._sets: deque[RowSet] = deque()

    def __iter__(self) -> Iterator[RowSet]:
        return iter(self._sets)

    @property
    def count(self) -> int:
        """How many rows wait."""
        return sum(len(rows.rows) for rows in self._sets)

    @property
    def many_held_up(self) -> bool:
        """True while so many rows wait for a worker with more room that no more should join them: memory holds them all."""
        return sum(len(rows.rows) for rows in self._sets if rows.held_up) >= _MOST_HELD_UP

    def first(self, worker: str, now: float | None) -> RowSet | None:
        """Returns the first rows that suit the worker; None where none do. now: without those that are kept for a lost worker."""
        return next((rows for rows in self._sets if (now is None or rows.kept_until <= now) and self._suits(worker, rows)), None)

    def rivals(self, rows: RowSet, workers: Iterable[str]) -> list[str]:
        """Returns those of ``workers`` that the rows suit."""
        return [worker for worker in workers if self._suits(worker, rows)]

    def take(self, first: RowSet, most: int) -> RowSet:
        """Takes up to ``most`` rows of a set that waits; of rows that run alone all, and of a whole shard, too."""
        self._sets = deque(rows for rows in self._sets if rows is not first)
        if len(first.rows) <= most or first.alone or self._whole_shards:
            return first
        self._sets.appendleft(first.part(first.rows[most:]))
        return first.part(first.rows[:most])

    def put(self, rows: RowSet) -> RowSet | None:
        """Lets rows wait, to be given next. Returns those to be given up, which is a whole shard or one row."""
        lost = rows.losses >= LOSSES_TOGETHER + LOSSES_ALONE
        if lost and (self._whole_shards or (rows.alone and len(rows.rows) == 1)):
            return rows
        if rows.losses < LOSSES_TOGETHER or self._whole_shards:
            self._sets.appendleft(rows)
        elif len(rows.rows) == 1:
            rows.alone = True
            self._sets.appendleft(rows)
        else:
            self._sets.extendleft(rows.halves())
        return None

    def drop(self, longest: int) -> list[RowSet]:
        """Takes away the sets that need room for longer rows than ``longest`` tokens, and returns them."""
        dropped = [rows for rows in self._sets if rows.beyond and rows.beyond >= longest]
        if dropped:
            self._sets = deque(rows for rows in self._sets if not rows.beyond or rows.beyond < longest)
        return dropped

    def thin_out(self, keep: Callable[[list[Row | BadRow]], Iterable[Row | BadRow]]) -> None:
        """Keeps of each set the rows that ``keep`` returns."""
        self._sets = deque(rows.part(left) for rows in self._sets if (left := list(keep(rows.rows))))
