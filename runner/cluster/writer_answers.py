"""What the writer's thread tells a run's driver: that records are written, and what is recorded of rows. It is taken in one thread.

Rows on their way back from workers wait for such an answer: others get what is left.
"""

from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

from ..leasing.leaser import Leaser
from ..leasing.row_set import RowSet
from ..store.shard_ledger import RecordedRow
from ..store.writer import Writer
from .quarantine import Quarantine

_T = TypeVar("_T")


class WriterAnswers:
    """Answers of ``writer``. pending: how many questions are not answered yet. For one thread."""

    def __init__(self, writer: Writer):
        self.pending = 0
        self._writer = writer
        self._come: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def look_up(self, positions: Sequence[int], told: Callable[[list[RecordedRow]], None]) -> None:
        """Has ``take`` call ``told`` with what is recorded of the rows, after all that has come of them."""
        self.pending += 1

        def answer(states: list[RecordedRow]) -> None:
            self.pending -= 1
            told(states)

        self._writer.look_up(positions, lambda states: self._come.put(lambda: answer(states)))

    def passing_on(self, told: Callable[[_T], None]) -> Callable[[_T], None]:
        """Returns what the writer's thread may call to have ``take`` call ``told`` with the same."""
        return lambda given: self._come.put(lambda: told(given))

    def take(self) -> None:
        """Calls what waits to be told."""
        while True:
            try:
                self._come.get_nowait()()
            except Empty:
                return


class RowReturns:
    """Gives rows back to ``leaser``, and those that no worker can do to ``quarantine``; from ``end`` on to nobody."""

    def __init__(self, answers: WriterAnswers, leaser: Leaser, quarantine: Quarantine):
        self._answers, self._leaser, self._quarantine = answers, leaser, quarantine
        self._ended = False

    def take(self, lost: list[RowSet]) -> None:
        """Takes rows that have come back."""
        for rows in lost:
            self._answers.look_up(rows.positions, partial(self._give_back, rows))

    def end(self) -> None:
        """Gives no more rows to workers: the run ends."""
        self._ended = True

    def _give_back(self, rows: RowSet, states: list[RecordedRow]) -> None:
        if self._ended:
            return
        for part in self._quarantine.divide(rows):
            for lost in self._leaser.give_back(part, states):
                self._quarantine.take_lost(lost)
