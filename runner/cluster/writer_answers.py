"""What the writer's thread tells a run's driver: what is recorded of rows, and that records are written. It is taken in one thread."""

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from ..store.shard_ledger import RecordedRow
from ..store.writer import Writer

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
