"""Reads CSV with a header line. A record may span lines inside quotes; a bad record spoils only its own row.

Every value is a string, and an empty cell is null. Knows no positions, keys or column types.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from ...configs.visible import visible
from ..core.errors import DataError
from .entry import ALL_ROWS, Entry, UnreadableError
from .line_formats import BOM, raw_lines
from .source import Source, open_stream, source_errors

MAX_CELL = 1 << 26  # csv's own limit of 131072 characters is too short for long documents; without a limit one quote swallows the file

SNIFFED_ROWS, SNIFFED_BYTES = 20, 1 << 16
OTHER_DELIMITERS = (";", "\t", "|")

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


def other_delimiter(source: Source) -> str | None:
    """Returns the delimiter of a csv source by its first lines, where that is not the one of its file name; None elsewhere.

    The usual one holds where it divides the header and fits a row. Another must divide the header, and all rows alike.
    """
    with source_errors(source), open_stream(source) as stream:
        head = stream.read(SNIFFED_BYTES).removeprefix(BOM).decode(errors="replace")
    lines = head.splitlines(keepends=True)
    whole = lines if len(head) < SNIFFED_BYTES else lines[:-1]
    width, fits = _fit(whole, source.separator)
    if width > 1 and fits:
        return None
    fitting = [(width, other) for other in OTHER_DELIMITERS if (width := _fit(whole, other)[0]) > 1 and _fit(whole, other)[1] == 1]
    return max(fitting)[1] if fitting else None


def _fit(lines: Sequence[str], delimiter: str) -> tuple[int, float]:
    """Returns how many columns the header has, and the share of the rows after it that have as many; 1 where there are none."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    widths: list[int] = []
    with suppress(csv.Error):  # an odd quote, or a record that goes on after these lines
        widths.extend(map(len, islice(filter(None, reader), SNIFFED_ROWS)))
    header, *rows = widths or [0]
    return header, sum(width == header for width in rows) / len(rows) if rows else 1


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
        raise UnreadableError(_reason(cells, text), shown)
    if not _is_clean(text):
        raise UnreadableError("not valid UTF-8, or holds a NUL byte", shown)
    if len(cells) != len(names):
        raise UnreadableError(f"has {len(cells)} cell{'' if len(cells) == 1 else 's'} where the header has {len(names)}", shown)
    return {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _reason(error: csv.Error, text: str) -> str:
    if "unexpected end of data" in str(error) and (lines := text.rstrip().count("\n")):
        return f"not valid CSV: a quote in this line is never closed, and takes the rest of the file; lines behind it: {lines:,}"
    return f"not valid CSV: {error}"


def _is_clean(text: str) -> bool:
    """Returns True when the text was valid UTF-8 (surrogateescape left no surrogates) and holds no NUL."""
    return "\0" not in text and (text.isascii() or re.search("[\ud800-\udfff]", text) is None)
