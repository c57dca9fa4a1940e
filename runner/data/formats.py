"""Reads the rows of a source of any format. Also gives a row's key, and its place for messages.

Keeps no state: no counts and no types.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from ...configs.schema import DataConfig
from .column_paths import lookup
from .csv_format import csv_entries
from .entry import ALL_ROWS, Entry, UnreadableError
from .line_formats import line_entries
from .sources import Source
from .table_formats import table_entries

TABLES = ("parquet", "arrow", "hub")


def entries(source: Source, data: DataConfig, ranges: Sequence[range] = ALL_ROWS) -> Iterator[Entry]:
    """Yields the source's rows in order, unparsed. Raises DataError when the source itself can't be read.

    ``ranges``: ascending ranges of positions among the source's own rows. Other rows are skipped cheaply.
    """
    if source.format in TABLES:
        return table_entries(source, data, ranges)
    return csv_entries(source, ranges) if source.format == "csv" else line_entries(source, ranges)


def row_key(columns: dict[str, Any], data: DataConfig, position: int) -> str:
    """Returns the row's key as a string, or its position if ``data.key`` is null. Raises UnreadableError for a null or nested key."""
    if data.key is None:
        return str(position)
    value = lookup(columns, data.key)
    if value is None or isinstance(value, dict | list | bytes):
        shown = "null or missing" if value is None else f"a {type(value).__name__}"
        raise UnreadableError(f"the key {data.key!r} is {shown}; a string or a number is expected", "")
    return str(value)


def row_place(source: Source, entry: Entry, position: int) -> str:
    """Returns a row's place for messages: file and 1-based line, or file and position in the input."""
    return f"{source.path}, line {entry.line}" if entry.line is not None else f"{source.path}, row {position} of the input"
