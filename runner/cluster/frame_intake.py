"""Checks the frames that workers send, and hands their records to the writer. Nothing that a worker sends is trusted before that."""

import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa

from ..core.errors import first_line
from ..core.outcomes import Failure
from ..core.progress import Progress
from ..core.shard_layout import Layout, Place
from ..leasing.track_record import OWN_STAGES
from ..store import journal
from ..store.arrow_builder import record_batch
from ..store.part_file import error_record, errors_schema
from ..store.row_order import positions
from ..store.shard_ledger import WHOLE
from ..store.writer import Writer
from .messages import Frames

FULL_BYTES = 8 << 20  # of frames that wait for the writer: then no more are taken from workers
MOST_COUNTED = 1 << 53  # of anything that a worker counts: what is beyond is no count
_MOST_SAMPLES = 2**31 - 1  # of a row; a ledger has no room for more


@dataclass(slots=True, frozen=True)
class Tokens:
    """Tokens of rows, counted once however often they were done."""

    prompt: int = 0
    generated: int = 0
    scored: int = 0

    def count_in(self, progress: Progress) -> None:
        """Adds these tokens to a session's."""
        progress.prompt += self.prompt
        progress.generated += self.generated
        progress.scored += self.scored


class FrameIntake:
    """Takes frames into the run directory. schema: of the run's results.

    require: raises ValueError for results of a shard, of the right rows and columns, that must not be written all the same.
    """

    def __init__(
        self,
        writer: Writer,
        schema: pa.Schema,
        layout: Layout,
        require: Callable[[int, pa.RecordBatch], None] = lambda shard, results: None,
    ):
        self._writer, self._layout, self._require = writer, layout, require
        self._schemas = {journal.RESULTS: schema, journal.ERRORS: errors_schema(schema)}
        self._nothing = {kind: pa.RecordBatch.from_pylist([], schema=own) for kind, own in self._schemas.items()}
        self._bytes, self._written = 0, threading.Condition()  # of messages that are not written yet

    def has_room(self, wait: float) -> bool:
        """Returns False while so much waits to be written that no more should be taken in; waits ``wait`` seconds for room."""
        with self._written:
            return self._written.wait_for(lambda: self._bytes < FULL_BYTES, wait)

    def land(self, message: Frames, landed: Callable[[Tokens], None]) -> tuple[int, int]:
        """Has the records written, and calls ``landed`` in the writer's thread once they are in the journal.

        ``landed`` gets the tokens of rows whose records were not there yet. Returns how many records there are, and how many failures
        that may be the worker's own.

        Raises ValueError for a message that is damaged, or holds other columns or rows than it should; none of it is written then.
        """
        found = self._checked(message)
        self._require(message.shard, found[journal.RESULTS])
        size = sum(len(frame.payload) for frame in message.frames)

        def count(kept: Set[int]) -> None:
            self._note_bytes(-size)
            counts = [each[1:] for each in message.tokens if each[0] in kept]
            landed(Tokens(*map(sum, zip(*counts, strict=True))))

        self._note_bytes(size)
        results, errors = found[journal.RESULTS], found[journal.ERRORS]
        self._writer.land(message.shard, message.admitted, results, errors, count)
        return len(results), sum(stage in OWN_STAGES for stage in errors["stage"].to_pylist())

    def fail(self, shard: int, admitted: Sequence[Place], failures: Sequence[Failure]) -> None:
        """Has rows of a shard quarantined, but for what a worker that was taken for gone has finished meanwhile."""
        results, errors = self._schemas[journal.RESULTS], self._schemas[journal.ERRORS]
        found = record_batch(errors, [error_record(results, self._layout, failure) for failure in failures])
        self._writer.land(shard, admitted, self._nothing[journal.RESULTS], found, lambda kept: None)

    def flush(self) -> bool:
        """Saves what has come; returns True on success. For any thread."""
        saved, writer = threading.Event(), self._writer
        writer.flush(saved.set)
        while not saved.wait(0.05) and writer.running:
            pass
        return not writer.broken

    def _note_bytes(self, more: int) -> None:
        with self._written:
            self._bytes += more
            self._written.notify()

    def _checked(self, message: Frames) -> dict[bytes, pa.RecordBatch]:
        """Returns the records of a message by their kind. Changes nothing. Raises ValueError, whatever is wrong with them."""
        try:
            return self._read(message)
        except ValueError:
            raise
        except Exception as error:  # what is not foreseen is no reason to end the run: the bytes are the worker's
            raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error

    def _read(self, message: Frames) -> dict[bytes, pa.RecordBatch]:
        found = dict(self._nothing)
        for frame in message.frames:
            kind = frame.kind.encode()
            if kind not in found:
                raise ValueError(f"the frame is of kind {frame.kind!r}")
            batch = journal.checked_batch(kind, frame.payload, frame.checksum)
            self._require_ours(batch, kind, message.shard)
            found[kind] = pa.concat_batches([found[kind], batch]) if len(found[kind]) else batch  # without a copy
        for kind, batch in found.items():
            self._require_places(batch, kind, message.shard)
        for position, samples in message.admitted:
            if not self._layout.has(position) or self._layout.shard_of(position) != message.shard or not 0 <= samples <= _MOST_SAMPLES:
                raise ValueError(f"row {position} is not one of shard {message.shard}")
        if not self._layout.rows_of(message.shard):
            raise ValueError(f"the run has no shard {message.shard}")
        if any(not 0 <= count <= MOST_COUNTED for counts in message.tokens for count in counts):
            raise ValueError("a number of tokens is below 0, or too large")
        return found

    def _require_ours(self, batch: pa.RecordBatch, kind: bytes, shard: int) -> None:
        """Raises ValueError unless the batch has the run's columns, and is of the round of ``shard``."""
        if not batch.schema.equals(self._schemas[kind]):
            raise ValueError("the frame has other columns than the run")
        batch.validate(full=True)
        if any(column.null_count for field, column in zip(batch.schema, batch.columns, strict=True) if not field.nullable):
            raise ValueError("the frame has no value where the run has one in each record")
        if "round" in batch.schema.names and set(batch.column("round").to_pylist()) - {shard // max(1, self._layout.shards_a_round)}:
            raise ValueError(f"the frame holds rows of another round than shard {shard}")

    def _require_places(self, batch: pa.RecordBatch, kind: bytes, shard: int) -> None:
        """Raises ValueError unless each record of a message's kind is another row and sample, of rows of ``shard``."""
        rows, samples = (each.tolist() for each in positions([batch]))
        own = self._layout.rows_of(shard)
        if rows and (not own or min(rows) < own.start or max(rows) >= own.stop):
            raise ValueError(f"the frame holds rows that are not of shard {shard}")
        least = WHOLE if kind == journal.ERRORS else 0
        if samples and not (least <= min(samples) and max(samples) <= _MOST_SAMPLES):
            raise ValueError("the frame holds a sample that no row has")
        if len(set(zip(rows, samples, strict=True))) != len(rows):
            raise ValueError("the frames hold a row and sample twice")
