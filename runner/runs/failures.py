"""Counts what a run left out: failed rows by their kind, groups dropped on purpose, and refused policies.

Takes no lock and changes nothing, so it may read a run that is at work.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pyarrow as pa

from ...configs.visible import visible
from ..core.errors import DROP, RunDirError
from ..files.checked_lines import read_lines
from ..store.commit_log import CommitLog, read_commits
from ..store.open_journals import journal_files, uncommitted_journals
from ..store.paths import RunPaths
from ..store.results import read_errors

REFUSED = "refused"  # the event of a policy that could not be loaded

_MAX_COUNTED = 200_000  # failures that are read to count their kinds: that takes a second or two
_MAX_KINDS = 1_000
_MAX_JOURNAL_BYTES = 256 << 20
_SHOWN_REASONS = 3
_SHOWN_CHARACTERS = 300
_COLUMNS = ["row", "key", "stage", "error", "message"]


@dataclass(slots=True)
class ErrorKind:
    """Failures of one stage and error class: their count, and the row, key and message of the first."""

    stage: str
    error: str
    count: int
    row: int
    key: str | None
    message: str


@dataclass(slots=True)
class _Counter:
    """Counts failures by stage and error class, at most about 200,000 of them.

    ``counted``: failures read so far. ``truncated``: there were more, which were not read.
    """

    counted: int = 0
    truncated: bool = False
    _kinds: dict[tuple[str, str], ErrorKind] = field(default_factory=dict[tuple[str, str], ErrorKind])

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Counts the failures of ``batches``, which have the columns ``_COLUMNS``."""
        for batch in batches:
            if self.counted >= _MAX_COUNTED:
                self.truncated = True
                return
            self.counted += batch.num_rows
            for row, key, stage, error, message in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
                if (kind := self._kinds.get((stage, error))) is not None:
                    kind.count += 1
                elif len(self._kinds) < _MAX_KINDS:
                    self._kinds[stage, error] = ErrorKind(stage, error, 1, row, key, message)

    @property
    def kinds(self) -> list[ErrorKind]:
        """The kinds counted so far, the most frequent first. Among equals the one that failed in an earlier row comes first."""
        return sorted(self._kinds.values(), key=lambda kind: (-kind.count, kind.row))


def error_kinds(paths: RunPaths, log: CommitLog, notes: list[str]) -> list[ErrorKind]:
    """Returns the kinds of all failures, committed or in journals, the most frequent first.

    Appends to ``notes`` what could not be counted. Where there are more than 200,000 failures, it counts the first of them.
    """
    counter = _Counter()
    try:
        counter.add(chain(read_errors(paths.root, _COLUMNS), _journaled_errors(paths, log, notes)))
    except RunDirError as error:
        notes.append(str(error))
    if counter.truncated:
        notes.append(f"errors: told apart by the first {counter.counted:,}; errors/ has them all")
    return counter.kinds


def _journaled_errors(paths: RunPaths, log: CommitLog, notes: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads the failures in journals. These hold results too and are read whole, so only the first 256 MB of them are read."""
    files = journal_files(paths)
    small, size = list[Path](), 0
    for file in files:
        with suppress(FileNotFoundError):  # committed in this moment
            size += file.stat().st_size
        if size > _MAX_JOURNAL_BYTES:
            break
        small.append(file)
    for each in uncommitted_journals(small, log):
        if each.journal is not None:
            yield from each.journal.errors
    if len(small) < len(files):
        notes.append("errors: those of shards that are not committed yet are not told apart, as their journals are large")


def error_reasons(run: Path) -> tuple[str, ...]:
    """Says in a line each why rows of the run directory ``run`` failed: the three most frequent kinds, then a count of the others.

    Counts committed failures, the first 200,000 where there are more, which a last line says. Leaves out dropped groups.
    Raises RunDirError where a part is missing or damaged.
    """
    counter = _Counter()
    counter.add(read_errors(run, _COLUMNS))
    kinds = [kind for kind in counter.kinds if kind.stage != DROP]
    lines = [_reason(kind) for kind in kinds[:_SHOWN_REASONS]]
    if others := sum(kind.count for kind in kinds[_SHOWN_REASONS:]):
        lines.append(f"{others:,} failed for other reasons: errors/ has them all")
    if counter.truncated:
        lines.append(f"these are the first {counter.counted:,} that failed: errors/ has them all")
    return tuple(lines)


def _reason(kind: ErrorKind) -> str:
    message = visible(" ".join(kind.message.split()))
    message = message if len(message) <= _SHOWN_CHARACTERS else f"{message[: _SHOWN_CHARACTERS - 1]}…"
    return f"{kind.count:,} failed at {kind.stage}, the first in row {kind.row}: {message}"


def dropped_groups(paths: RunPaths) -> int:
    """Counts the groups left out on purpose, in errors/ and in journals. Raises RunDirError where a part is missing or damaged."""
    uncommitted = uncommitted_journals(journal_files(paths), read_commits(paths))
    journals = [each.journal for each in uncommitted if each.journal is not None]
    retried = {each.header.shard for each in journals if each.header.retry}  # their journals repeat the drops of their parts
    return committed_drops(paths, without=retried) + sum(_drops(each.errors) for each in journals)


def committed_drops(paths: RunPaths, without: Collection[int] = ()) -> int:
    """Counts the groups in errors/ that were left out on purpose, except in the shards ``without``.

    Raises RunDirError where a part is missing or damaged.
    """
    return _drops(read_errors(paths.root, ["stage"], without))


def _drops(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.column("stage").to_pylist().count(DROP) for batch in batches)


def refused_policies(paths: RunPaths) -> int:
    """Counts the trainer's steps that could not be loaded, each once however often it was tried; 0 where no policy was watched."""
    return len({(line["version"], line["source"]) for line in read_lines(paths.policy_events) if line["event"] == REFUSED})
