"""Streams the input's rows in order, with positions and keys. A row that can't be read comes as a BadRow.

Reads only what the pre-scan found. A file that changed since then, or changes now, stops the job before a row of its new contents
is yielded. Memory does not grow with the rows.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, islice

from ...configs.data import DataConfig
from ..core.errors import DataError
from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout
from ..formats.entry import Entry, UnreadableError
from ..formats.row_entries import entries
from .row_key import row_key, row_place
from .scan_result import Scan, ScannedSource, is_unchanged
from .type_inference import json_text

WINDOW_ROWS = 64  # between two looks at the file's stamp: one costs as much as reading a few rows, and far more on a network volume


def read_rows(scan: Scan, data: DataConfig, ranges: Iterable[range]) -> Iterator[Row | BadRow]:
    """Yields the rows in ``ranges`` of all sources, in order. Positions are 0-based and count every row, bad ones too.

    ``ranges``: ascending ranges of positions below ``scan.rows``. Other rows are skipped unparsed, and whole sources unopened.
    Raises DataError when a source is not the one that was scanned.
    """
    spans, first = deque(filter(None, ranges)), 0
    for scanned in scan.sources:
        if first == scan.rows:
            return
        if not is_unchanged(scanned):
            raise _changed(scanned)
        end = first + scanned.rows
        own: list[range] = []
        while spans and spans[0].start < end:
            span = spans.popleft()
            own.append(range(max(span.start, first) - first, min(span.stop, end) - first))
            if span.stop > end:
                spans.appendleft(span)
                break
        if own:
            rows = _rows(scanned, data, first, own)
            while window := _window(scanned, rows):
                yield from window
        first = end


def read_rounds(scan: Scan, data: DataConfig, layout: Layout, shards: Iterable[int]) -> Iterator[Row | BadRow]:
    """Yields the rows of ascending ``shards``, with their positions in ``layout``. The input is read once a round."""
    for around, own in groupby(shards, lambda shard: shard // layout.shards_a_round):
        for row in read_rows(scan, data, map(layout.rows_of, own)):
            if around == 0:
                yield row
            elif isinstance(row, BadRow):
                yield replace(row, position=layout.position(around, row.position))
            else:
                yield replace(row, position=layout.position(around, row.position), round=around)


def _window(scanned: ScannedSource, rows: Iterator[Row | BadRow]) -> list[Row | BadRow]:
    """Returns the next rows of a source. Raises DataError if its file is no longer the scanned one after they were read."""
    try:
        window = list(islice(rows, WINDOW_ROWS))
    except DataError as error:
        if is_unchanged(scanned):
            raise
        raise _changed(scanned) from error
    if not is_unchanged(scanned):
        raise _changed(scanned)
    return window


def _rows(scanned: ScannedSource, data: DataConfig, first: int, ranges: list[range]) -> Iterator[Row | BadRow]:
    """Yields the rows in ``ranges`` of a source, by positions among its own. ``first``: the input's position of its first row."""
    unparsed = entries(scanned.source, data, ranges)
    for position in chain.from_iterable(ranges):
        entry = next(unparsed, None)
        if entry is None:
            raise _changed(scanned)
        yield _row(scanned, data, entry, first + position)


def _row(scanned: ScannedSource, data: DataConfig, entry: Entry, position: int) -> Row | BadRow:
    text = ""
    try:
        columns = entry.parse()
        try:
            place, source = row_place(scanned.source, entry, position), scanned.source.path
            return Row(position, row_key(columns, data, position), columns, place, source=source)
        except UnreadableError:
            text = json_text(columns)
            raise
    except UnreadableError as error:
        return BadRow(
            position,
            f"{row_place(scanned.source, entry, position)}: {error}",
            error.text or text,
            entry.line,
            None if data.key_column else str(position),
        )


def _changed(scanned: ScannedSource) -> DataError:
    return DataError(
        f"{scanned.source.path} changed since it was scanned at the start. Let whatever writes it finish, then continue with the same "
        "command (without --overwrite)."
    )
