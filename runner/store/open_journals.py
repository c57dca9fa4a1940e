"""Journals of shards that are not committed: a read-only walk over them, and how the next session continues them.

A shard is open while it is being filled. A committed shard is opened again where its input has grown, or where its errors are
retried. Its parts stay, and are read by others, until the merged generation is committed. The caller holds the run's lock;
only ``journal_files`` and ``uncommitted_journals`` do without it.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..core.errors import DROP
from . import journal
from .commit_log import Commit, CommitLog
from .journal import Header, Journal
from .paths import OWN_JOURNALS, RunPaths
from .row_order import positions
from .shard_commit import base_batches

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class UncommittedJournal:
    """A journal file as it lies there. journal: None where its header is not whole; damaged_bytes: those behind its last good frame."""

    path: Path
    journal: Journal | None
    damaged_bytes: int


def journal_files(paths: RunPaths) -> list[Path]:
    """Lists the journals' files by their names, without temporary ones."""
    if not paths.journal.is_dir():
        return []
    return sorted(file for file in paths.journal.iterdir() if OWN_JOURNALS.fullmatch(file.name) and file.suffix != ".tmp")


def uncommitted_journals(files: Iterable[Path], log: CommitLog) -> Iterator[UncommittedJournal]:
    """Reads each of ``files`` whose generation is not committed yet, and leaves it as it is.

    Passes over files that are gone: another process has committed their shards meanwhile.
    """
    for file in files:
        with suppress(FileNotFoundError):
            found, damaged_bytes = journal.peek(file)
            if found is None or found.header.generation > log.generations.get(found.header.shard, 0):
                yield UncommittedJournal(file, found, damaged_bytes)


def read_journals(
    paths: RunPaths, schema: pa.Schema, rows_of: Callable[[int], range], committed: Collection[int] = ()
) -> dict[int, Journal]:
    """The journals by shard. One that cannot be read, or holds other columns or rows than the run's, is removed.

    rows_of: the input rows of a shard. An empty file of a ``committed`` shard holds no row that is done again: it goes without a word.
    """
    for file in paths.journal.iterdir():
        if OWN_JOURNALS.fullmatch(file.name) and file.suffix == ".tmp":
            file.unlink()
    found: dict[int, Journal] = {}
    for file in journal_files(paths):
        if file.stat().st_size == 0 and int(file.name) in committed:
            file.unlink()
        elif (read := journal.read_journal(file)) is None or file != paths.journal_of(read.header.shard):
            _remove(file, "does not begin as it was written")
        elif any(not batch.schema.equals(schema) for batch in read.results):
            _remove(file, "has columns that are not the run's any more")
        elif not within(read, rows_of(read.header.shard)):
            _remove(file, "holds rows that the input does not have")
        else:
            found[read.header.shard] = read
    return found


def within(each: Journal, rows: range) -> bool:
    """Whether the journal holds rows of these alone."""
    found = np.concatenate([positions(batches)[0] for batches in (each.results, each.errors)])
    return bool(np.all((found >= rows.start) & (found < rows.stop)))


def _remove(file: Path, reason: str) -> None:
    """Removes a journal that cannot be continued."""
    log.warning("%s: %s; its rows are done again", file, reason)
    file.unlink()


def headers(journals: Mapping[int, Journal], commits: CommitLog) -> dict[int, Header]:
    """What those journals are to become whose generation is not committed yet."""
    return {shard: each.header for shard, each in journals.items() if each.header.generation > commits.generations.get(shard, 0)}


def unfinished_journals(paths: RunPaths, journals: Mapping[int, Journal], commits: CommitLog) -> dict[int, Journal]:
    """Those that are not committed yet, and continue the commit in force. Where there is none any more, their own rows are kept."""
    kept: dict[int, Journal] = {}
    open_shards = headers(journals, commits)
    for shard, each in journals.items():
        file, commit = paths.journal_of(shard), commits.commits.get(shard)
        if shard not in open_shards:
            file.unlink()
        elif commit is None or each.header.base == commit.generation:
            kept[shard] = each
        else:
            _remove(file, "continues a part that is not the one committed")
    return kept


def reopen(paths: RunPaths, commit: Commit, retry: int) -> Journal:
    """A journal that continues a commit; ``retry``: the number of the retry in which its errors are done again, or 0."""
    header = Header(commit.shard, commit.generation + 1, commit.generation, retry)
    kept = _drops(base_batches(paths, commit)[1]) if retry else []
    journal.begin(paths.journal_of(commit.shard), header, kept)
    return Journal(header, [], kept)


def has_errors(paths: RunPaths, each: Journal | None, base: Commit | None) -> bool:
    """Whether errors count as done in a shard: those of its journal, or those that this takes over from the ``base``.

    What was dropped is none: it is left out on purpose, and a retry leaves it where it is.
    """
    return any(batch.column("stage").to_pylist().count(DROP) < batch.num_rows for batch in _errors(paths, each, base))


def without_errors(paths: RunPaths, each: Journal, base: Commit | None, retry: int) -> Journal:
    """The same journal, of which no error that is older than this ``retry`` counts as done, nor one of its base."""
    if each.header.retry >= retry:
        return each
    header, kept = replace(each.header, retry=retry), _drops(_errors(paths, each, base))
    journal.rewrite(paths.journal_of(header.shard), header, each.results, kept)
    return Journal(header, each.results, kept)


def _errors(paths: RunPaths, each: Journal | None, base: Commit | None) -> list[pa.RecordBatch]:
    taken_over = base_batches(paths, base)[1] if base is not None and base.errors and not (each and each.header.retry) else []
    return [*taken_over, *(each.errors if each else [])]


def _drops(errors: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """What of these was left out on purpose."""
    found = (batch.filter(pa.array([stage == DROP for stage in batch.column("stage").to_pylist()], pa.bool_())) for batch in errors)
    return [batch for batch in found if batch.num_rows]
