"""Audits one committed shard: its files are those of its commit, and each of its rows is there once, in order.

Bytes are checked before Arrow parses them. Takes some bytes of memory per record of the shard. Knows no input and no job kinds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..core.arrays import Ints
from ..files.file_stamp import sha256
from ..store.commit_log import Commit
from ..store.part_file import part_schema, read_part
from ..store.paths import RunPaths
from ..store.row_order import positions


class DamageError(Exception):
    """A part is not what its commit says. The message says what is wrong with ``part``, the file."""

    def __init__(self, part: Path, message: str) -> None:
        super().__init__(message)
        self.part = part


@dataclass(slots=True)
class ShardCount:
    """Counts of a shard's files: records, and failures by (stage, class). columns: those of the records."""

    records: int = 0
    errors: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    files: int = 0
    bytes: int = 0
    columns: pa.Schema | None = None


def count_shard(paths: RunPaths, commit: Commit, start: int, samples: int | None) -> ShardCount:
    """Counts the shard of ``commit``. Its rows begin at ``start`` and have ``samples`` records or failures each (None: any number).

    Raises DamageError where the shard is not sound, OSError where a part cannot be read.
    """
    count, places = ShardCount(), np.zeros(0, np.int64)
    for part, file in commit.files(paths):
        try:
            whole = sha256(part) == file.sha256
            batches = list(read_part(part)) if whole else []
        except FileNotFoundError as error:
            raise DamageError(part, "is missing") from error
        if not whole:
            raise DamageError(part, "is damaged: its sha256 is not the one committed")
        part_places = _places(part, batches, start)
        if part.parent == paths.results:
            count.columns = part_schema(part)
            _require_number(part, "records", len(part_places), commit.records)
        else:
            _require_number(part, "errors", len(part_places), commit.errors)
            count.errors = _kinds(batches)
        places = np.concatenate([places, part_places])
        count.files += 1
        count.bytes += file.bytes
    count.records = commit.records
    _require_each_once(next(commit.files(paths))[0], np.sort(places), range(start, start + commit.rows), samples)
    return count


def _kinds(batches: Sequence[pa.RecordBatch]) -> Counter[tuple[str, str]]:
    kinds = Counter[tuple[str, str]]()
    for batch in batches:
        kinds.update(zip(batch.column("stage").to_pylist(), batch.column("error").to_pylist(), strict=True))
    return kinds


def _require_number(part: Path, what: str, held: int, committed: int) -> None:
    if held != committed:
        raise DamageError(part, f"holds {held} {what}, its commit says {committed}")


def _places(part: Path, batches: Sequence[pa.RecordBatch], start: int) -> Ints:
    """Returns for each record row - start << 32 | sample + 1, where a row that failed whole has sample -1.

    Raises DamageError where these do not ascend.
    """
    rows, samples = positions(batches)
    places = (rows - start) << 32 | (samples + 1)
    if (np.diff(places) <= 0).any():
        raise DamageError(part, "has rows that are not in order, or there twice")
    return places


def _require_each_once(part: Path, places: Ints, rows: range, samples: int | None) -> None:
    """Raises DamageError unless each row has failed whole, or has its samples from 0 on, each once.

    places: of results and errors together, ascending; see ``_places``.
    """
    row, number = places >> 32, places & 0xFFFFFFFF
    if ((row < 0) | (row >= len(rows))).any():
        raise DamageError(part, "holds rows of another shard")
    if twice := np.count_nonzero(np.diff(places) == 0):
        raise DamageError(part, f"holds {twice} record{'' if twice == 1 else 's'} that stand in errors/ too")
    count, highest, failed = np.bincount(row, minlength=len(rows)), np.full(len(rows), -1), np.zeros(len(rows), np.bool_)
    highest[row] = number  # the last one of a row stays
    failed[row[number == 0]] = True
    by_samples = (highest == count) & (count == (count if samples is None else samples))
    if open_rows := np.flatnonzero(~np.where(failed, count == 1, by_samples & (count > 0))).tolist():
        lacking = f"lacks {len(open_rows)} row{'' if len(open_rows) == 1 else 's'}"
        raise DamageError(part, f"{lacking}, or samples of them; the first is row {rows.start + open_rows[0]}")
