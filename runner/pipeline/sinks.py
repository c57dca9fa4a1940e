"""Where groups go that are not written: to whoever iterates them, in memory. Stands in the writer's place behind the recording thread.

Knows rows by their positions and records by the schema's columns; nothing of engines, rewards or files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import pyarrow as pa

from ..core.requests import Failure
from ..core.shard_layout import Layout
from ..store.arrow_builder import record_batch
from ..store.part_file import errors_schema

WAIT = 0.2  # seconds between two looks at whether recording has failed


class Sink(Protocol):
    """What records and failures are handed to, by one thread; see ``Writer``, which keeps them in the run directory."""

    def admit(self, position: int, samples: int) -> None:
        """Says that the row at ``position`` will have ``samples`` records or failures."""
        ...

    def add(self, position: int, sample: int, record: dict[str, Any]) -> None:
        """Takes over a finished record."""
        ...

    def add_group(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        """Takes over all records of a row, by their sample."""
        ...

    def fail(self, failure: Failure) -> None:
        """Takes over what could not be done."""
        ...

    def flush(self, told: Callable[[], None]) -> None:
        """Calls ``told`` when what came before is safe."""
        ...

    @property
    def running(self) -> bool:
        """False once nothing is taken any more."""
        ...

    @property
    def broken(self) -> bool:
        """True where that is for a failure."""
        ...


@dataclass(slots=True, frozen=True)
class _Item:
    """What became of a row: its group's records, or its line for errors/."""

    position: int
    group: pa.RecordBatch | None
    error: dict[str, Any] | None


class MemorySink:
    """Groups as the records of ``schema``, and failures as the columns of errors/; both with input row and round by ``layout``."""

    running, broken = True, False

    def __init__(self, schema: pa.Schema, layout: Layout):
        self._schema, self._layout = schema, layout
        self._failed = errors_schema(schema).names
        self._items: SimpleQueue[_Item] = SimpleQueue()
        self._left: set[int] = set()
        self.errors: list[dict[str, Any]] = []

    # ------------------------------------------------------------------------------------------ for the recording thread

    def admit(self, position: int, samples: int) -> None:
        """Nothing: who iterates waits for rows, not for samples."""

    def add(self, position: int, sample: int, record: dict[str, Any]) -> None:
        """Never called: all samples of a row come together."""
        raise AssertionError("a record without its group")

    def add_group(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        """All records of a row, in the order of their samples."""
        place = self._place(position)
        rows = [record | place | {"sample": sample} for sample, record in sorted(records.items())]
        self._items.put(_Item(position, record_batch(self._schema, rows), None))

    def fail(self, failure: Failure) -> None:
        """A row that has no group."""
        error = asdict(failure) | self._place(failure.row)
        self._items.put(_Item(failure.row, None, {name: error[name] for name in self._failed}))

    def flush(self, told: Callable[[], None]) -> None:
        """Nothing is kept back."""
        told()

    # --------------------------------------------------------------------------------------------- for who iterates

    def expect(self, positions: Iterable[int]) -> None:
        """Says which rows the model is given next."""
        self._left.update(positions)

    def ready(self) -> Iterator[pa.RecordBatch]:
        """The groups that are there. Failures go to ``errors``."""
        while True:
            try:
                item = self._items.get_nowait()
            except Empty:
                return
            yield from self._settled(item)

    def rest(self, failed: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """The groups of all rows that were expected; waits for them, unless recording has ``failed``."""
        while self._left and not failed():
            try:
                item = self._items.get(timeout=WAIT)
            except Empty:
                continue
            yield from self._settled(item)

    def _settled(self, item: _Item) -> Iterator[pa.RecordBatch]:
        self._left.discard(item.position)
        if item.error is not None:
            self.errors.append(item.error)
        if item.group is not None:
            yield item.group

    def _place(self, position: int) -> dict[str, int]:
        return {"row": self._layout.row_of(position), "round": self._layout.round_of(position)}
