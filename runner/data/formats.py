"""One way to walk the rows of any source, whatever its format; a row's key; and where a row stands, for messages.

Does not count, type or remember anything.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ...configs.schema import DataConfig
from .column_paths import lookup
from .csv_format import csv_entries
from .entry import EVERY, Entry, UnreadableError
from .line_formats import line_entries
from .sources import Source
from .table_formats import table_entries

TABLES = ("parquet", "arrow", "hub")


def entries(source: Source, data: DataConfig, wanted: Sequence[range] = EVERY) -> Iterator[Entry]:
    """The source's rows in order, not yet parsed. Raises DataError when the source itself cannot be read.

    ``wanted``: positions among the source's own rows, as ranges that ascend; the others are passed over, and cost little.
    """
    if source.format in TABLES:
        return table_entries(source, data, wanted)
    return csv_entries(source, wanted) if source.format == "csv" else line_entries(source, wanted)


def row_key(columns: dict[str, Any], data: DataConfig, position: int) -> str:
    """The user's key for the row as a string, or its position where ``data.key`` is null. Raises UnreadableError for null."""
    if data.key is None:
        return str(position)
    value = lookup(columns, data.key)
    if value is None or isinstance(value, dict | list | bytes):
        found = "null or missing" if value is None else f"a {type(value).__name__}"
        raise UnreadableError(f"the key {data.key!r} is {found}; a string or a number is expected", "")
    return str(value)


def place(source: Source, entry: Entry, position: int) -> str:
    """Where a row stands, in a user's words: file and 1-based line, or file and position in the input."""
    return f"{source.path}, line {entry.line}" if entry.line is not None else f"{source.path}, row {position} of the input"
