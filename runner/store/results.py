"""Reads the committed records of a run, and on demand the finished ones of open shards.

Each shard's current part is checked against the commit log first. A part that is replaced meanwhile is read in its newer generation.
Knows no columns.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Self

import pyarrow as pa

from ..core.errors import RunDirError
from ..files.file_stamp import Stamp, sha256, stamp_of
from .commit_log import Commit, CommitLog, PartFile, read_commits
from .journal import Journal, peek
from .open_journals import journal_files, only_drops, uncommitted_journals
from .part_file import part_batches
from .paths import RunPaths
from .row_order import sorted_records

PartOf = Callable[[RunPaths, Commit], tuple[Path, PartFile] | None]

# Names the command in full: who reads a run is another command (export, compare) or another run.
_AGAIN = "Start that run again, with its own mlx-bulk run command (without --overwrite): it does the shard again."


def read_results(run: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the committed results of the run directory ``run``, in input order, as views of the parts' memory maps.

    columns: only these, in the schema's order. A part without the stamp of its commit is hashed before it is parsed, once per
    process. Takes no lock, and may leave out shards that are committed while it reads. Raises RunDirError where a committed part is
    missing, damaged, or lacks one of the columns.
    """
    return _committed(RunPaths(run), _results_of, columns)


def read_errors(run: Path, columns: list[str] | None = None, without: Collection[int] = ()) -> Iterator[pa.RecordBatch]:
    """Yields the committed failures of the run directory ``run``, with the columns of ``errors_schema``, as ``read_results`` does.

    without: shards that are left out.
    """
    return _committed(RunPaths(run), _errors_of, columns, without)


def finished_results(run: Path, columns: list[str] | None = None, sound: bool = False) -> Iterator[pa.RecordBatch]:
    """Yields all finished results of the run directory ``run``: the committed ones, then those in journals, in no order.

    sound: parts that are missing or damaged are passed over, as the next start does their shards again. Otherwise as ``read_results``. The
    caller holds the run's lock: a shard that is committed meanwhile could be read twice.
    """
    journals = list(_journals(run))
    yield from _committed(RunPaths(run), _results_of, columns, sound=sound)
    for journal in journals:
        yield from _selected(journal.results, columns)


def finished_errors(run: Path, columns: list[str] | None = None, sound: bool = False, retried: bool = False) -> Iterator[pa.RecordBatch]:
    """Yields all failures that count as done, as ``finished_results`` does; those that a retry does again are left out.

    retried: leaves out what ``--retry-errors`` would do again now. Dropped groups stay: no retry does them again.
    """
    paths, journals = RunPaths(run), {journal.header.shard: journal for journal in _journals(run)}
    log = read_commits(paths)

    def counted(shard: int, failures: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun = journals[shard].header.retry if shard in journals else 0
        again = retried or log.retries.get(shard, 0) > begun
        return _selected(only_drops(failures) if again else failures, columns)

    for shard, commit in sorted(log.commits.items()):
        if shard not in journals or not journals[shard].header.retry:
            with suppress(RunDirError) if sound else nullcontext():
                yield from counted(shard, _shard_batches(paths, commit, _errors_of, None))
    for shard, journal in journals.items():
        yield from counted(shard, journal.errors)


def recorded_schema(run: Path) -> pa.Schema | None:
    """Returns the columns of the records in the run directory ``run``: of a sound part, else of a journal; None where it holds none."""
    paths = RunPaths(run)
    for _, commit in sorted(read_commits(paths).commits.items()):
        with suppress(RunDirError):
            if (part := _current(paths, commit, _results_of)) is not None:
                with part[1] as file:
                    return pa.ipc.open_file(file).schema
    return next((batch.schema for journal in _journals(run) for batch in journal.results), None)


def _selected(batches: Iterable[pa.RecordBatch], columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    yield from batches if columns is None else (batch.select(columns) for batch in batches)


def _journals(run: Path) -> Iterator[Journal]:
    paths = RunPaths(run)
    for each in uncommitted_journals(journal_files(paths), read_commits(paths)):
        if each.journal is not None:
            yield each.journal


@dataclass(slots=True, frozen=True)
class OpenShards:
    """The records in journals of shards that are not committed, as they were at one moment."""

    journals: dict[int, Journal]
    log: CommitLog

    @classmethod
    def of(cls, run: Path) -> Self:
        """Reads the journals of the run directory ``run``, and then its commit log, so that no finished record is missed in between."""
        paths, held = RunPaths(run), dict[int, Journal]()
        for file in journal_files(paths):
            with suppress(FileNotFoundError):  # committed in this moment
                content, _ = peek(file)
                if content is not None:
                    held[content.header.shard] = content
        log = read_commits(paths)
        return cls({shard: each for shard, each in held.items() if each.header.generation > log.generations.get(shard, 0)}, log)

    def batches(self, shard: int, errors: bool) -> list[pa.RecordBatch]:
        """Returns the results, or with ``errors`` the failures, in the shard's journal."""
        return self.journals[shard].errors if errors else self.journals[shard].results

    @property
    def records(self) -> int:
        """Counts the results in journals."""
        return sum(batch.num_rows for shard in self.journals for batch in self.batches(shard, False))

    @property
    def errors(self) -> int:
        """Counts the failures in journals."""
        return sum(batch.num_rows for shard in self.journals for batch in self.batches(shard, True))


def read_finished(run: Path, open_shards: OpenShards, errors: bool = False) -> Iterator[pa.RecordBatch]:
    """Yields the committed records of the run directory ``run`` and those of ``open_shards``, in input order; or the failures.

    Records that another run's columns had are left out. Raises RunDirError as ``read_results``.
    """
    paths, part_of, log = RunPaths(run), _errors_of if errors else _results_of, open_shards.log
    schema: pa.Schema | None = None
    for shard in sorted(log.commits.keys() | open_shards.journals.keys()):
        commit, journal = log.commits.get(shard), open_shards.journals.get(shard)
        redone = journal is not None and errors and journal.header.retry > 0
        committed = iter(()) if commit is None or redone else _shard_batches(paths, commit, part_of, None)
        batches = committed if journal is None else sorted_records([*committed, *_of_schema(open_shards.batches(shard, errors), schema)])
        for batch in batches:
            schema = batch.schema
            yield batch


def _of_schema(batches: list[pa.RecordBatch], schema: pa.Schema | None) -> list[pa.RecordBatch]:
    return [batch for batch in batches if schema is None or batch.schema.equals(schema)]


def checked_parts(run: Path, errors: bool = False) -> list[Path]:
    """Returns the committed parts of the run directory ``run`` in input order, of its failures with ``errors``; checks each of them.

    Raises RunDirError where a committed part is missing or damaged.
    """
    paths, part_of = RunPaths(run), _errors_of if errors else _results_of
    parts: list[Path] = []
    for _, commit in sorted(read_commits(paths).commits.items()):
        if (part := _current(paths, commit, part_of)) is not None:
            part[1].close()  # one file is open at a time: a run can have more parts than a process may have files
            parts.append(part[0])
    return parts


def _results_of(paths: RunPaths, commit: Commit) -> tuple[Path, PartFile] | None:
    return next(commit.files(paths))


def _errors_of(paths: RunPaths, commit: Commit) -> tuple[Path, PartFile] | None:
    return next(islice(commit.files(paths), 1, None), None)


def _committed(
    paths: RunPaths,
    part_of: PartOf,
    columns: list[str] | None,
    without: Collection[int] = (),
    sound: bool = False,
) -> Iterator[pa.RecordBatch]:
    for shard, commit in sorted(read_commits(paths).commits.items()):
        if shard not in without:
            with suppress(RunDirError) if sound else nullcontext():
                yield from _shard_batches(paths, commit, part_of, columns)


def _shard_batches(paths: RunPaths, commit: Commit, part_of: PartOf, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    if (part := _current(paths, commit, part_of)) is not None:
        with part[1] as file:
            yield from part_batches(part[0], file, columns)


def _current(paths: RunPaths, commit: Commit, part_of: PartOf) -> tuple[Path, pa.MemoryMappedFile] | None:
    """Checks and opens a commit's part. Where a process has replaced it since the log was read, opens its newer generation."""
    while (expected := part_of(paths, commit)) is not None:
        part, file = expected
        try:
            if _is_whole(part, file):
                return part, pa.memory_map(str(part))
            problem = "is damaged (its sha256 is not the one committed)"
        except FileNotFoundError:
            problem = "commits.jsonl says it is there, but it is not"
        newest = read_commits(paths).commits.get(commit.shard)
        if newest is None or newest.generation == commit.generation:
            raise RunDirError(f"{part}: {problem}. {_AGAIN}")
        commit = newest
    return None


def _is_whole(part: Path, file: PartFile) -> bool:
    """Returns True when the part has the bytes that were committed. Raises OSError."""
    stat = part.stat()
    size, stamp = stat.st_size, stamp_of(stat)
    return size == file.bytes and (stamp == file.stamp or _sha256(part.absolute(), stamp) == file.sha256)


@cache
def _sha256(part: Path, stamp: Stamp) -> str:
    """Hashes a part once per stamp: a copied run has other stamps than its commits, and is read several times."""
    return sha256(part)
