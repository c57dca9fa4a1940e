"""Rows on their way back from workers: the writer is asked what is recorded of them, then others get what is left."""

from functools import partial

from ..leasing.leaser import Leaser
from ..leasing.row_set import RowSet
from ..store.shard_ledger import RecordedRow
from .quarantine import Quarantine
from .writer_answers import WriterAnswers


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
