"""Reads the rows of a source of any format, unparsed. Keeps no state: no counts and no types."""

from collections.abc import Iterator, Sequence

from ...configs.data import DataConfig
from .csv_format import csv_entries
from .entry import ALL_ROWS, Entry
from .json_array import array_entries
from .line_formats import line_entries
from .source import Source
from .table_formats import table_entries

_READERS = {"jsonl": line_entries, "text": line_entries, "csv": csv_entries, "json": array_entries}


def entries(source: Source, data: DataConfig, ranges: Sequence[range] = ALL_ROWS) -> Iterator[Entry]:
    """Yields the source's rows in order, unparsed. Raises DataError when the source itself can't be read.

    ``ranges``: ascending ranges of positions among the source's own rows. Other rows are skipped cheaply.
    """
    return table_entries(source, data, ranges) if source.is_table else _READERS[source.format](source, ranges)
