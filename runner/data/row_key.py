"""A row's key, its place for messages, and whether finished rows still have their keys."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.data import DataConfig
from ...configs.explain import shown
from ..core.requests import BadRow, Row
from ..formats.entry import Entry, UnreadableError
from ..formats.source import Source
from .column_paths import lookup

Records = Callable[[], Iterable[pa.RecordBatch]]


def row_key(columns: dict[str, Any], data: DataConfig, position: int) -> str:
    """Returns the row's key as a string, or its position where no column is the key.

    Raises UnreadableError for a key that is neither a string nor a number: null, true or false, a list or a mapping.
    """
    if data.key_column is None:
        return str(position)
    if data.format == "openai":
        return _custom_id(columns.get(data.key_column))
    value = lookup(columns, data.key_column)
    if value is None or isinstance(value, bool | dict | list | bytes):
        found = "null or missing" if value is None else shown(value) if isinstance(value, bool) else f"a {type(value).__name__}"
        raise UnreadableError(f"the key {data.key_column!r} is {found}; a string or a number is expected", "")
    return str(value)


def _custom_id(value: object) -> str:
    """Returns the key of a line of a Batch file."""
    if isinstance(value, str) and value:
        return value
    found = "null or missing" if value is None else "empty" if value == "" else shown(value)
    raise UnreadableError(f"the key 'custom_id' is {found}; a string is expected, by which the answer is known", "")


def row_place(source: Source, entry: Entry, position: int) -> str:
    """Returns a row's place for messages: file and 1-based line, or file and position in the input."""
    return f"{source.path}, line {entry.line}" if entry.line is not None else f"{source.path}, row {position} of the input"


@dataclass(slots=True, frozen=True)
class ChangedKey:
    """A finished row whose place another row has taken, with both keys. failed: the finished row has failures alone.

    now: None where the other row cannot be read; ``reason`` says why.
    """

    row: int
    finished: str
    failed: bool
    now: str | None
    reason: str = ""


def changed_key(results: Records, errors: Records, rows: Iterable[Row | BadRow]) -> ChangedKey | None:
    """Returns the first of the input's ``rows`` whose key is not that of what is finished in its place; None where all are the same.

    results, errors: yield records with their columns ``row`` and ``key``. Places without one, and failures without a key, are passed over.
    """
    hashes, known = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    for batch in chain(results(), errors()):
        keyed = batch.filter(batch.column("key").is_valid())
        if not keyed.num_rows:
            continue
        at = keyed.column("row").to_numpy()
        if (size := int(at.max()) + 1) > len(known):
            hashes, known = (np.concatenate([table, np.zeros(max(size, len(known)), table.dtype)]) for table in (hashes, known))
        hashes[at], known[at] = [hash(key) for key in keyed.column("key").to_pylist()], True
    for row in rows:
        if row.position >= len(known):
            return None
        if known[row.position] and hash(row.key) != hashes[row.position]:
            old = _key_of(results(), row.position)
            kept = _key_of(errors(), row.position) if old is None else old
            if kept is None:  # a run at work has done it again meanwhile
                continue
            return ChangedKey(row.position, kept, old is None, row.key, row.message if isinstance(row, BadRow) else "")
    return None


def _key_of(batches: Iterable[pa.RecordBatch], row: int) -> str | None:
    for batch in batches:
        for at in np.flatnonzero(batch.column("row").to_numpy() == row).tolist():
            if (key := batch.column("key")[at].as_py()) is not None:
                return key
    return None
