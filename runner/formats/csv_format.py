"""Reads CSV with a header line. A record may span lines inside quotes; a bad record spoils only its own row.

Every value is a string, and an empty cell is null. Knows no positions, keys or column types.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from ...configs.visible import visible
from ..core.errors import DataError
from .entry import ALL_ROWS, Entry, UnreadableError
from .line_formats import raw_lines
from .source import Source, open_stream, source_errors

MAX_CELL = 1 << 26  # csv's own limit of 131072 characters is too short for long documents; without a limit one quote swallows the file

_Cells = list[str] | csv.Error


def csv_entries(source: Source, ranges: Sequence[range] = ALL_ROWS) -> Iterator[Entry]:
    """Yields the entries in ``ranges`` of a csv source, in order. Skips blank lines. Raises DataError for an unreadable header."""
    with source_errors(source):
        records = _records(source)
        header = next(records, None)
        if header is None:
            return
        names, at = _names(source, *header[1:]), 0
        for span in ranges:
            next(islice(records, span.start - at, span.start - at), None)
            for line, cells, text in islice(records, len(span)):
                yield Entry(line, partial(_parse, names, cells, text))
            at = span.stop


def _records(source: Source) -> Iterator[tuple[int, _Cells, str]]:
    """Yields each record: the 1-based line on which it starts, its cells or the error in them, and its text."""
    lines: list[str] = []

    def read_lines() -> Iterator[str]:
        with open_stream(source) as stream:
            for raw in raw_lines(stream):
                text = raw.decode(errors="surrogateescape")
                lines.append(text)
                yield text

    csv.field_size_limit(MAX_CELL)
    reader = csv.reader(read_lines(), delimiter=source.separator, strict=True)
    while True:
        lines.clear()
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = error
        text = "".join(lines)
        if text.strip(" \r\n"):
            yield line, cells, text


def _names(source: Source, cells: _Cells, text: str) -> list[str]:
    """Returns the columns' names. Raises DataError for a header that can't be read, or that names a column twice."""
    if isinstance(cells, csv.Error) or not _is_clean(text):
        raise DataError(f"{source.path}: the header line cannot be read as CSV in UTF-8: {text.encode(errors='replace')[:200]!r}")
    twice = sorted({name for name in cells if cells.count(name) > 1})
    if twice:
        raise DataError(f"{source.path}: the header names a column twice: {', '.join(map(visible, twice))}. Rename one of them.")
    return cells


def _parse(names: list[str], cells: _Cells, text: str) -> dict[str, Any]:
    shown = text.encode(errors="surrogateescape").decode(errors="replace").rstrip("\r\n")
    if isinstance(cells, csv.Error):
        raise UnreadableError(f"not valid CSV: {cells}", shown)
    if not _is_clean(text):
        raise UnreadableError("not valid UTF-8, or holds a NUL byte", shown)
    if len(cells) != len(names):
        raise UnreadableError(f"has {len(cells)} cells where the header has {len(names)}", shown)
    return {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _is_clean(text: str) -> bool:
    """Returns True when the text was valid UTF-8 (surrogateescape left no surrogates) and holds no NUL."""
    return "\0" not in text and (text.isascii() or re.search("[\ud800-\udfff]", text) is None)
