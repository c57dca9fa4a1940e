"""Journals of shards that are not committed: how a session fills them, a walk that only reads them, how the next session continues them.

A shard is open while it is being filled. A committed shard is opened again where its input has grown, or where its errors are to
be done again. Its parts stay, and are read by others, until the merged generation is committed.
``journal_files`` and ``uncommitted_journals`` take no lock. For all else the caller holds the run's lock.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..core.errors import DROP
from . import journal
from .arrow_builder import record_batch, record_bytes
from .commit_log import Commit, CommitLog
from .journal import Header, Journal
from .part_file import errors_schema
from .paths import OWN_JOURNALS, RunPaths
from .row_order import positions
from .shard_commit import base_batches
from .shard_ledger import WHOLE, Ledger

log = logging.getLogger("mlx_bulk")

_FRAME_RECORDS, _FRAME_BYTES = 256, 8 << 20


@dataclass(slots=True)
class OpenShard:
    """A shard that is being filled. results, errors: those that are not in its journal yet. begun: the journal exists."""

    ledger: Ledger
    header: Header
    base: Commit | None = None
    begun: bool = False
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    held_bytes: int = 0
    synced: bool = True

    def hold(self, held: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
        """Adds ``records`` to ``held``, which is ``results`` or ``errors``."""
        self.held_bytes += sum(map(record_bytes, records))
        held += records
        self.synced = False

    @property
    def frame_is_full(self) -> bool:
        """True when the records that are held make a frame."""
        return len(self.results) + len(self.errors) >= _FRAME_RECORDS or self.held_bytes >= _FRAME_BYTES

    def write_frames(self, path: Path, schema: pa.Schema) -> None:
        """Writes what is held to the journal at ``path``, which is made at first."""
        self._begin(path)
        # Each list is emptied as soon as it is written, so that a later failure does not write it twice.
        if self.results:
            self.append(path, journal.RESULTS, record_batch(schema, self.results))
            self.results = []
        if self.errors:
            self.append(path, journal.ERRORS, record_batch(errors_schema(schema), self.errors))
            self.errors = []
        self.held_bytes = 0

    def append(self, path: Path, kind: bytes, batch: pa.RecordBatch) -> None:
        """Appends a frame to the journal at ``path``, which is made at first."""
        self._begin(path)
        journal.append(path, kind, batch)
        self.synced = False

    def land(self, path: Path, kind: bytes, batch: pa.RecordBatch) -> list[int]:
        """Appends what ``batch`` holds of unfinished samples, and counts it in the ledger. Returns the row of each such record.

        A row cannot fail as a whole when it has finished samples, so such a failure is left out, too.
        """
        rows, samples = (each.tolist() for each in positions([batch]))
        new = [self._is_new(row, sample) for row, sample in zip(rows, samples, strict=True)]
        if not any(new):
            return []
        self.append(path, kind, batch if all(new) else batch.filter(pa.array(new)))
        for row, sample, counts in zip(rows, samples, new, strict=True):
            if counts and kind == journal.RESULTS:
                self.ledger.add_result(row, sample)
            elif counts:
                self.ledger.add_error(row, None if sample == WHOLE else sample)
        return [row for row, counts in zip(rows, new, strict=True) if counts]

    def _is_new(self, row: int, sample: int) -> bool:
        if sample == WHOLE:
            return not self.ledger.is_resolved(row) and not self.ledger.samples_of(row)
        return not self.ledger.has(row, sample)

    def _begin(self, path: Path) -> None:
        if not self.begun:
            journal.begin(path, self.header)
            self.begun = True

    def save(self, path: Path, schema: pa.Schema) -> None:
        """Writes what is held to the journal at ``path``; returns when all of it is on the medium."""
        if not self.synced:
            self.write_frames(path, schema)
            journal.sync_journal(path)
            self.synced = True


@dataclass(slots=True, frozen=True)
class UncommittedJournal:
    """A journal file as it lies there. journal: None where its header is not whole. damaged_bytes: those after its last good frame."""

    path: Path
    journal: Journal | None
    damaged_bytes: int


def journal_files(paths: RunPaths) -> list[Path]:
    """Lists the journals' files by their names, without temporary ones."""
    if not paths.journal.is_dir():
        return []
    return sorted(file for file in paths.journal.iterdir() if OWN_JOURNALS.fullmatch(file.name) and file.suffix != ".tmp")


def uncommitted_journals(files: Iterable[Path], commit_log: CommitLog) -> Iterator[UncommittedJournal]:
    """Reads each of ``files`` whose generation is not committed yet, and leaves it as it is.

    Passes over files that are gone: another process has committed their shards meanwhile.
    """
    for file in files:
        with suppress(FileNotFoundError):
            content, damaged_bytes = journal.peek(file)
            if content is None or content.header.generation > commit_log.generations.get(content.header.shard, 0):
                yield UncommittedJournal(file, content, damaged_bytes)


def read_journals(
    paths: RunPaths, schema: pa.Schema, rows_of: Callable[[int], range], committed: Collection[int] = ()
) -> dict[int, Journal]:
    """Reads the journals, by shard. Removes those that cannot be read, or hold other columns or rows than the run's.

    rows_of: the input rows of a shard. An empty file of a ``committed`` shard is removed without a warning: no row is done again.
    """
    for file in paths.journal.iterdir():
        if OWN_JOURNALS.fullmatch(file.name) and file.suffix == ".tmp":
            file.unlink()
    journals: dict[int, Journal] = {}
    for file in journal_files(paths):
        if file.stat().st_size == 0 and int(file.name) in committed:
            file.unlink()
        elif (content := journal.read_journal(file)) is None or file != paths.journal_of(content.header.shard):
            _remove(file, "does not begin as it was written")
        elif any(not batch.schema.equals(schema) for batch in content.results):
            _remove(file, "has columns that are not the run's any more")
        elif not holds_only(content, rows_of(content.header.shard)):
            _remove(file, "holds rows that the input does not have")
        else:
            journals[content.header.shard] = content
    return journals


def holds_only(content: Journal, rows: range) -> bool:
    """Returns True when the journal holds no other rows than ``rows``."""
    held = np.concatenate([positions(batches)[0] for batches in (content.results, content.errors)])
    return bool(np.all((held >= rows.start) & (held < rows.stop)))


def _remove(file: Path, reason: str) -> None:
    log.warning("%s: %s; its rows are done again", file, reason)
    file.unlink()


def uncommitted_headers(journals: Mapping[int, Journal], commit_log: CommitLog) -> dict[int, Header]:
    """Returns the headers of those journals whose generation is not committed yet."""
    return {shard: each.header for shard, each in journals.items() if each.header.generation > commit_log.generations.get(shard, 0)}


def continuable_journals(paths: RunPaths, journals: Mapping[int, Journal], commit_log: CommitLog) -> dict[int, Journal]:
    """Returns the journals that can be continued, and removes the others.

    These are not committed yet, and continue the commit in force. Where their commit was voided, their own rows are kept.
    """
    kept: dict[int, Journal] = {}
    uncommitted = uncommitted_headers(journals, commit_log)
    for shard, each in journals.items():
        file, commit = paths.journal_of(shard), commit_log.commits.get(shard)
        if shard not in uncommitted:
            file.unlink()
        elif commit is None or each.header.base == commit.generation:
            kept[shard] = each
        else:
            _remove(file, "continues a part that is not the one committed")
    return kept


def reopen_shard(paths: RunPaths, commit: Commit, retry: int) -> Journal:
    """Begins a journal that continues a commit. retry: number of the retry in which its errors are done again, or 0."""
    header = Header(commit.shard, commit.generation + 1, commit.generation, retry)
    drops = only_drops(base_batches(paths, commit)[1]) if retry else []
    journal.begin(paths.journal_of(commit.shard), header, drops)
    return Journal(header, [], drops)


def has_errors(paths: RunPaths, content: Journal | None, base: Commit | None) -> bool:
    """Returns True when a shard has errors that count as done: those of its journal, and those taken over from its ``base``.

    Dropped groups are no errors: they are left out on purpose, and a retry leaves them where they are.
    """
    return any(batch.column("stage").to_pylist().count(DROP) < batch.num_rows for batch in _errors(paths, content, base))


def forget_errors(paths: RunPaths, content: Journal, base: Commit | None, retry: int) -> Journal:
    """Rewrites the journal without errors that are older than this ``retry``, its own and its base's. Dropped groups stay."""
    if content.header.retry >= retry:
        return content
    header, drops = replace(content.header, retry=retry), only_drops(_errors(paths, content, base))
    journal.rewrite(paths.journal_of(header.shard), header, content.results, drops)
    return Journal(header, content.results, drops)


def _errors(paths: RunPaths, content: Journal | None, base: Commit | None) -> list[pa.RecordBatch]:
    """Returns the errors that count as done in a shard."""
    is_retried = content is not None and content.header.retry > 0
    from_base = base_batches(paths, base)[1] if base is not None and base.errors and not is_retried else []
    return [*from_base, *(content.errors if content is not None else [])]


def only_drops(errors: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Returns the errors that are groups left out on purpose, which a retry leaves where they are."""
    drops = (batch.filter(pa.array([stage == DROP for stage in batch.column("stage").to_pylist()], pa.bool_())) for batch in errors)
    return [batch for batch in drops if batch.num_rows]
