"""The writer's thread: takes finished records from the model's thread, keeps them in journals, commits finished shards.

A bounded queue stands between the two, so a slow disk holds the model back instead of filling memory. Knows rows, samples
and records; nothing of tokens, prompts or job kinds.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from queue import Empty, Queue
from time import monotonic
from typing import Any

import pyarrow as pa

from . import journal
from .commits import append_closing, read_commits
from .durable import room_on
from .parts import ERRORS_SCHEMA, commit_shard
from .paths import RunPaths
from .record_batch import record_batch, record_bytes
from .records import Failure
from .recovery import Ledger, Recovered, shard_rows

_QUEUE_ITEMS = 256
_FRAME_RECORDS, _FRAME_BYTES = 256, 8 << 20


@dataclass(slots=True)
class _OpenShard:
    """A shard being filled: what is resolved, what each admitted row needs, and what is not in its journal yet."""

    rows: int
    ledger: Ledger
    samples: dict[int, int] = field(default_factory=dict[int, int])
    resolved: set[int] = field(default_factory=set[int])
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    held_bytes: int = 0
    synced: bool = True

    def resolve(self, row: int) -> bool:
        """Whether ``row`` has just become resolved."""
        done = row in self.ledger.failed or len(self.ledger.samples.get(row, ())) >= self.samples.get(row, 1 << 31)
        if not done or row in self.resolved:
            return False
        self.resolved.add(row)
        return True

    def hold(self, held: list[dict[str, Any]], record: dict[str, Any]) -> None:
        held.append(record)
        self.held_bytes += record_bytes(record)
        self.synced = False

    @property
    def frame_is_full(self) -> bool:
        return len(self.results) + len(self.errors) >= _FRAME_RECORDS or self.held_bytes >= _FRAME_BYTES


class Writer:
    """Writes the records of a run of ``rows`` input rows; ``admit``, ``add``, ``fail`` and ``close`` are for one thread.

    What the writer's thread raises (OSError; OutOfRoom for a full volume; ValueError for a record that does not fit the
    schema, or is there already) is raised by the next call, and by ``close``.
    """

    def __init__(
        self, paths: RunPaths, schema: pa.Schema, rows: int, rows_per_shard: int, recovered: Recovered, fsync_seconds: float
    ) -> None:
        self.rows, self.records, self.errors = recovered.rows, recovered.records, recovered.errors
        self._paths, self._schema = paths, schema
        self._input_rows, self._rows_per_shard = rows, rows_per_shard
        self._generations = dict(recovered.generations)
        self._committed = set(recovered.committed)
        self._open = {shard: self._opened(shard, ledger) for shard, ledger in recovered.done.items()}
        self._fsync_seconds = fsync_seconds
        self._due: float | None = None
        self._failure: BaseException | None = None
        self._queue: Queue[Callable[[], None] | None] = Queue(_QUEUE_ITEMS)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._put(self._settle_recovered)

    def admit(self, row: int, samples: int) -> None:
        """Says that ``row`` will have ``samples`` records or failures, those recovered counted in.

        Every row of an open shard is admitted or fails whole, those too of which nothing is left to do: a shard is committed
        when all its rows are resolved. Rows recovered as failed whole are resolved already, and may be admitted all the same.
        """
        self._put(lambda: self._admit(row, samples))

    def add(self, row: int, sample: int, record: dict[str, Any]) -> None:
        """Takes over a finished record, by the schema's columns; ``row`` and ``sample`` are put in here."""
        self._put(lambda: self._add(row, sample, record))

    def fail(self, failure: Failure) -> None:
        """Quarantines a row, or one sample of it."""
        self._put(lambda: self._fail(failure))

    def close(self, flush: bool = True) -> None:
        """Stops the thread. What is not in a journal yet is written and synced first, or with ``flush=False`` left to be done again."""
        if self._thread.is_alive():
            if flush:
                self._queue.put(self._flush)
            self._queue.put(None)
            self._thread.join()
        self._raise_failure()

    def finish(self) -> None:
        """Closes, and declares the run complete in commits.jsonl. Raises RuntimeError where rows are not resolved."""
        self.close()
        shards = -(-self._input_rows // self._rows_per_shard)
        if missing := sorted(set(range(shards)) - self._committed):
            raise RuntimeError(f"{self._paths.root}: {len(missing)} shards are not complete, the first is {missing[0]}")
        with room_on(self._paths.root):
            if read_commits(self._paths).closing is None:
                append_closing(self._paths, self.rows, self.records, self.errors)

    def _put(self, change: Callable[[], None]) -> None:
        self._raise_failure()
        self._queue.put(change)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        """The thread: one change after another, and a flush when the oldest held record has waited long enough.

        After a failure it goes on taking changes and drops them, so that nobody waits for room in the queue.
        """
        while True:
            change = self._next()
            if change is None:
                return
            if self._failure is None:
                try:
                    with room_on(self._paths.root):
                        change()
                except BaseException as error:
                    self._failure = error

    def _next(self) -> Callable[[], None] | None:
        if self._due is None or self._failure is not None:
            return self._queue.get()
        wait = self._due - monotonic()
        if wait <= 0:
            return self._flush
        try:
            return self._queue.get(timeout=wait)
        except Empty:
            return self._flush

    def _admit(self, row: int, samples: int) -> None:
        if row // self._rows_per_shard in self._committed:
            return
        number, shard = self._shard(row)
        shard.samples[row] = samples
        self._settle(number, shard, row)

    def _add(self, row: int, sample: int, record: dict[str, Any]) -> None:
        number, shard = self._shard(row)
        if shard.ledger.has(row, sample):
            raise ValueError(f"row {row}, sample {sample} is finished already")
        identity = {"row": row, "sample": sample} if "sample" in self._schema.names else {"row": row}
        shard.hold(shard.results, {**record, **identity})
        shard.ledger.add_result(row, sample)
        self.records += 1
        self._settle(number, shard, row)

    def _fail(self, failure: Failure) -> None:
        number, shard = self._shard(failure.row)
        if failure.row in shard.ledger.failed or (failure.sample is not None and shard.ledger.has(failure.row, failure.sample)):
            raise ValueError(f"row {failure.row}, sample {failure.sample} is finished already")
        shard.hold(shard.errors, {name: _encodable(value) for name, value in asdict(failure).items()})
        shard.ledger.add_error(failure.row, failure.sample)
        self.errors += 1
        self._settle(number, shard, failure.row)

    def _shard(self, row: int) -> tuple[int, _OpenShard]:
        number = row // self._rows_per_shard
        if number in self._committed or not 0 <= row < self._input_rows:
            raise ValueError(f"row {row} is not to be done: its shard {number} is committed, or the input has {self._input_rows} rows")
        if number not in self._open:
            self._open[number] = self._opened(number, Ledger())
        return number, self._open[number]

    def _opened(self, shard: int, ledger: Ledger) -> _OpenShard:
        return _OpenShard(shard_rows(shard, self._input_rows, self._rows_per_shard), ledger)

    def _settle(self, number: int, shard: _OpenShard, row: int) -> None:
        """After a change to ``row``: commits the shard if that was its last, else sees to its journal."""
        if shard.resolve(row):
            self.rows += 1
        if len(shard.resolved) == shard.rows:
            self._commit(number, shard)
            return
        if shard.frame_is_full:
            self._write_frames(number, shard)
        if self._due is None and not shard.synced:
            self._due = monotonic() + self._fsync_seconds

    def _settle_recovered(self) -> None:
        for number, shard in list(self._open.items()):
            self.rows += sum(shard.resolve(row) for row in shard.ledger.failed)
            if len(shard.resolved) == shard.rows:
                self._commit(number, shard)

    def _commit(self, number: int, shard: _OpenShard) -> None:
        self._write_frames(number, shard)
        generation = self._generations.get(number, 0) + 1
        commit_shard(self._paths, self._schema, number, generation, shard.rows, shard.ledger.records, shard.ledger.errors)
        self._committed.add(number)
        del self._open[number]

    def _write_frames(self, number: int, shard: _OpenShard) -> None:
        path = self._paths.journal_of(number)
        if shard.results:
            journal.append(path, journal.RESULTS, record_batch(self._schema, shard.results))
        if shard.errors:
            journal.append(path, journal.ERRORS, record_batch(ERRORS_SCHEMA, shard.errors))
        shard.results, shard.errors, shard.held_bytes = [], [], 0

    def _flush(self) -> None:
        self._due = None
        for number, shard in self._open.items():
            if not shard.synced:
                self._write_frames(number, shard)
                journal.sync(self._paths.journal_of(number))
                shard.synced = True


def _encodable(value: Any) -> Any:
    """A failure's text may be what made the row fail: characters that UTF-8 does not have are escaped."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
