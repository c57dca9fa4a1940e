"""Runs the writer's thread, which keeps finished records in journals and commits finished shards.

Records reach it through a bounded queue, so a slow disk holds the model back instead of filling memory. Knows rows, samples and
records, but no tokens, prompts or job kinds.
"""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from queue import Empty, Queue
from time import monotonic
from typing import Any

import pyarrow as pa

from ..core.outcomes import Failure
from ..core.shard_layout import Layout
from ..files.disk_space import room_on
from . import journal
from .commit_log import append_closing, read_commits
from .journal import Header
from .open_journals import OpenShard
from .part_file import error_record, record_place
from .paths import RunPaths
from .recovery import Recovered
from .shard_commit import commit_shard
from .shard_ledger import WHOLE, Ledger, RecordedRow

_QUEUE_ITEMS = 256
_POLL_SECONDS = 0.05  # how often a waiting caller checks whether the thread has failed


class Writer:
    """Writes the records of a run. ``admit``, ``add``, ``add_group``, ``fail`` and ``close`` are for one thread.

    identity: hex digest of the run's identity, which each part declares.
    Callers name rows by their position in the run's ``layout``; records are written with the row's number in the input, and its round.
    An error of the writer's thread (OSError; OutOfRoom for a full volume; ValueError for a record that does not fit the schema, or
    was added before) is raised by the next call, and by ``close``.
    """

    def __init__(self, run: RunPaths, identity: str, schema: pa.Schema, layout: Layout, recovered: Recovered, fsync_seconds: float) -> None:
        self.rows, self.records, self.errors = recovered.rows, recovered.records, recovered.errors
        self._paths, self._identity, self._schema = run, identity, schema
        self._layout = layout
        self._generations = dict(recovered.generations)
        self._committed = set(recovered.committed)
        self._open = {
            shard: OpenShard(ledger, recovered.headers[shard], recovered.bases.get(shard), begun=True)
            for shard, ledger in recovered.done.items()
        }
        self._fsync_seconds = fsync_seconds
        self._due: float | None = None
        self._failure: BaseException | None = None
        self._queue: Queue[Callable[[], None] | None] = Queue(_QUEUE_ITEMS)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()
        self._put(self._settle_recovered)

    def admit(self, position: int, samples: int) -> None:
        """Notes that the row at ``position`` will have ``samples`` records or failures, with those recovered.

        A shard is committed when all its rows are resolved. So each row of an open shard that is not recovered as resolved must be
        admitted or fail whole, also when nothing of it is left to do. Resolved rows may be admitted too.
        """
        self._put(lambda: self._admit(position, samples))

    def add(self, position: int, sample: int, record: dict[str, Any]) -> None:
        """Adds a finished record with the schema's columns. The writer puts in ``row``, ``round`` and ``sample``."""
        self._put(lambda: self._add(position, {sample: record}))

    def add_group(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        """Adds all records of a row, by their sample. After a crash either all of them are there, or none."""
        self._put(lambda: self._add(position, records))

    def fail(self, failure: Failure) -> None:
        """Quarantines a row, or one sample of it."""
        self._put(lambda: self._fail(failure))

    def land(
        self,
        shard: int,
        admitted: Sequence[tuple[int, int]],
        results: pa.RecordBatch,
        errors: pa.RecordBatch,
        landed: Callable[[Set[int]], None],
    ) -> None:
        """Adds the finished records of a shard that another process has made.

        admitted: positions, and the samples that each row will have. results, errors: in the columns of the parts; what is finished
        already is left out, since a row may have been done twice. landed: called in the writer's thread with the positions of rows of
        which something was not left out.
        """
        self._put(lambda: landed(self._land(shard, admitted, results, errors)))

    def look_up(self, positions: Sequence[int], told: Callable[[list[RecordedRow]], None]) -> None:
        """Calls ``told`` in the writer's thread with what is recorded of the rows at ``positions`` after all that was added before."""
        self._put(lambda: told([self._recorded(position) for position in positions]))

    def flush(self, saved: Callable[[], None]) -> None:
        """Writes and syncs what was added before, then calls ``saved`` in the writer's thread, unless that fails."""
        self._put(lambda: (self._flush(), saved())[1])

    def wait(self) -> None:
        """Returns when ``rows``, ``records`` and ``errors`` count all that was added before, or the writer's thread has failed."""
        counted = threading.Event()
        self._queue.put(counted.set)
        while not counted.wait(_POLL_SECONDS) and self.running:
            pass

    def require_running(self) -> None:
        """Raises the error of the writer's thread, if it has failed."""
        self._raise_failure()

    @property
    def running(self) -> bool:
        """False once the writer's thread has failed or been closed."""
        return self._thread.is_alive() and self._failure is None

    @property
    def broken(self) -> bool:
        """True when the writer's thread has failed; the next call raises its error."""
        return self._failure is not None

    def close(self, flush: bool = True) -> None:
        """Stops the thread. With ``flush``, held records are written to the journals and synced first; else they are done again later."""
        if self._thread.is_alive():
            if flush:
                self._queue.put(self._flush)
            self._queue.put(None)
            self._thread.join()
        self._raise_failure()

    def finish(self) -> None:
        """Closes the writer and declares the run complete in commits.jsonl. Raises RuntimeError where rows are not resolved."""
        self.close()
        if missing := sorted(set(range(self._layout.shards)) - self._committed):
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
        """Makes one change after another in the thread, and flushes when the oldest held record has waited long enough.

        After a failure it still takes changes, and drops them, so that no thread waits for room in the queue.
        """
        pa.array([0])  # pyarrow's first array imports pandas, which would hold up the first save after a signal
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
                    self._save_the_rest()

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

    def _admit(self, position: int, samples: int) -> None:
        if self._layout.shard_of(position) in self._committed:
            return
        number, shard = self._shard(position)
        with self._settling(number, shard):
            shard.ledger.admit(self._layout.row_of(position), samples)

    def _add(self, position: int, records: Mapping[int, dict[str, Any]]) -> None:
        number, shard = self._shard(position)
        row = self._layout.row_of(position)
        if done := [sample for sample in records if shard.ledger.has(row, sample)]:
            raise ValueError(f"row {row}, sample {done[0]} is finished already")
        with self._settling(number, shard):
            shard.hold(
                shard.results, [record | record_place(self._schema, self._layout, position, sample) for sample, record in records.items()]
            )
            for sample in records:
                shard.ledger.add_result(row, sample)
            self.records += len(records)

    def _fail(self, failure: Failure) -> None:
        number, shard = self._shard(failure.row)
        row, sample = self._layout.row_of(failure.row), failure.sample
        if shard.ledger.has_failed(row) or (sample is not None and shard.ledger.has(row, sample)) or shard.ledger.is_resolved(row):
            raise ValueError(f"row {row}, sample {sample} is finished already")
        if sample is None and shard.ledger.samples_of(row):
            raise ValueError(f"row {row} cannot fail whole: it has finished samples")
        with self._settling(number, shard):
            shard.hold(shard.errors, [error_record(self._schema, self._layout, failure)])
            shard.ledger.add_error(row, sample)
            self.errors += 1

    def _land(self, number: int, admitted: Sequence[tuple[int, int]], results: pa.RecordBatch, errors: pa.RecordBatch) -> set[int]:
        if number in self._committed:
            return set()
        number, shard = self._shard(number * self._layout.rows_per_shard)
        path, ledger = self._paths.journal_of(number), shard.ledger
        with self._settling(number, shard), journal.loss_as_error(path):
            for position, samples in admitted:
                ledger.admit(self._layout.row_of(position), samples)
            kept = shard.land(path, journal.RESULTS, results)
            failed = shard.land(path, journal.ERRORS, errors)
            self.records, self.errors = self.records + len(kept), self.errors + len(failed)
        first = number * self._layout.rows_per_shard - self._layout.rows_of(number).start
        return {first + row for row in (*kept, *failed)}

    def _recorded(self, position: int) -> RecordedRow:
        number, row = self._layout.shard_of(position), self._layout.row_of(position)
        if number in self._committed:
            return RecordedRow(position, True)
        if number not in self._open:
            return RecordedRow(position, False)
        ledger = self._open[number].ledger
        whole = (WHOLE,) if ledger.has_failed(row) else ()
        return RecordedRow(position, ledger.is_resolved(row), (*whole, *sorted(ledger.samples_of(row))))

    def _shard(self, position: int) -> tuple[int, OpenShard]:
        number = self._layout.shard_of(position)
        if number in self._committed or not self._layout.has(position):
            where = f"its shard {number} is committed, or the run has {self._layout.total} rows"
            raise ValueError(f"row {position} is not to be done: {where}")
        if number not in self._open:
            rows = self._layout.rows_of(number)
            self._open[number] = OpenShard(Ledger(rows.start, len(rows)), Header(number, self._generations.get(number, 0) + 1))
        return number, self._open[number]

    @contextmanager
    def _settling(self, number: int, shard: OpenShard) -> Generator[None]:
        """Surrounds a change to a row. Then commits the shard if all its rows are resolved, or writes its journal when due."""
        left = shard.ledger.left
        yield
        self.rows += left - shard.ledger.left
        if not shard.ledger.left:
            self._commit(number, shard)
            return
        if shard.frame_is_full:
            with journal.loss_as_error(self._paths.journal_of(number)):
                shard.write_frames(self._paths.journal_of(number), self._schema)
        if self._due is None and not shard.synced:
            self._due = monotonic() + self._fsync_seconds

    def _settle_recovered(self) -> None:
        for number, shard in list(self._open.items()):
            if not shard.ledger.left:
                self._commit(number, shard)

    def _commit(self, number: int, shard: OpenShard) -> None:
        with journal.loss_as_error(self._paths.journal_of(number)):
            shard.write_frames(self._paths.journal_of(number), self._schema)
            commit_shard(self._paths, self._identity, self._schema, shard.header, shard.base, shard.ledger)
        self._committed.add(number)
        del self._open[number]

    def _flush(self) -> None:
        self._due = None
        for number, shard in self._open.items():
            self._save(number, shard)

    def _save(self, number: int, shard: OpenShard) -> None:
        path = self._paths.journal_of(number)
        with journal.loss_as_error(path):
            shard.save(path, self._schema)

    def _save_the_rest(self) -> None:
        """Saves held records after a failure. A volume without room for a part may still have room for journals."""
        for number, shard in self._open.items():
            with suppress(Exception):
                self._save(number, shard)
