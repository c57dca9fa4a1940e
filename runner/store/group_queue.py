"""Passes groups from the thread that records them to the thread that iterates over them: the writer of rollouts that are kept nowhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from ..core.outcomes import Failure
from ..core.shard_layout import Layout
from .arrow_builder import record_batch
from .part_file import errors_schema

_POLL_SECONDS = 0.2  # between two looks at whether recording has failed


@dataclass(slots=True, frozen=True)
class _RowResult:
    """The result of a row: the records of its group, or its line for errors/."""

    position: int
    group: pa.RecordBatch | None
    error: dict[str, Any] | None


class GroupQueue:
    """The groups that are recorded and not yet taken. Implements ``Sink``.

    Groups have the columns of ``schema``, failures those of errors/; both have their input row and round, by ``layout``.
    """

    running, broken = True, False

    def __init__(self, schema: pa.Schema, layout: Layout):
        self._schema, self._layout = schema, layout
        self._error_columns = errors_schema(schema).names
        self._results: SimpleQueue[_RowResult] = SimpleQueue()
        self._expected: set[int] = set()
        self.errors: list[dict[str, Any]] = []

    # ------------------------------------------------------------------------------------------ for the recording thread

    def admit(self, position: int, samples: int) -> None:
        """Does nothing: the iterating thread waits for rows, not for samples."""

    def add(self, position: int, sample: int, record: dict[str, Any]) -> None:
        """Is never called: all samples of a row come together."""
        raise AssertionError("a record without its group")

    def add_group(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        """Takes all records of a row, by their sample."""
        place = self._place(position)
        rows = [record | place | {"sample": sample} for sample, record in sorted(records.items())]
        self._results.put(_RowResult(position, record_batch(self._schema, rows), None))

    def fail(self, failure: Failure) -> None:
        """Takes the failure of a row."""
        error = asdict(failure) | self._place(failure.row)
        self._results.put(_RowResult(failure.row, None, {name: error[name] for name in self._error_columns}))

    def flush(self, saved: Callable[[], None]) -> None:
        """Calls ``saved`` at once: nothing is held back."""
        saved()

    # --------------------------------------------------------------------------------------- for the iterating thread

    def expect(self, positions: Iterable[int]) -> None:
        """Notes the rows that the model is given next."""
        self._expected.update(positions)

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Yields the groups that have come. Failures go to ``errors``."""
        while True:
            try:
                result = self._results.get_nowait()
            except Empty:
                return
            yield from self._take(result)

    def rest(self, failed: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Waits for all rows that are expected, and yields their groups. Ends early when recording has ``failed``."""
        while self._expected and not failed():
            try:
                result = self._results.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            yield from self._take(result)

    def _take(self, result: _RowResult) -> Iterator[pa.RecordBatch]:
        self._expected.discard(result.position)
        if result.error is not None:
            self.errors.append(result.error)
        if result.group is not None:
            yield result.group

    def _place(self, position: int) -> dict[str, int]:
        return {"row": self._layout.row_of(position), "round": self._layout.round_of(position)}
