"""The input's rows, streamed in order with position and key; a row that cannot be read comes as a BadRow.

Reads what the pre-scan found and nothing else: a file that changed since, or changes meanwhile, stops the job before a row of its
new contents is handed on. Memory does not grow with the rows.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, islice

from ...configs.schema import DataConfig
from ..core.errors import DataError
from ..core.requests import BadRow, Row
from ..core.shard_layout import Layout
from .entry import Entry, UnreadableError
from .formats import entries, place, row_key
from .scan_result import Scan, Scanned, unchanged
from .type_inference import json_text

WINDOW_ROWS = 64  # a look at the file's stamp costs what reading a few rows does, and much more on a network volume


def read_rows(scan: Scan, data: DataConfig, wanted: Iterable[range]) -> Iterator[Row | BadRow]:
    """The ``wanted`` rows of all sources, in order; positions are 0-based and count every row, bad ones too.

    ``wanted``: ranges of positions that ascend and end with ``scan.rows``. Rows outside them are passed over without being parsed,
    whole sources without being opened. Raises DataError when a source is not the one that was scanned.
    """
    spans, first = deque(filter(None, wanted)), 0
    for scanned in scan.sources:
        if first == scan.rows:
            return
        if not unchanged(scanned):
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
    """The rows of ``shards``, which ascend, by their positions in ``layout``: the input is read once a round."""
    for around, own in groupby(shards, lambda shard: shard // layout.shards_a_round):
        for row in read_rows(scan, data, map(layout.rows_of, own)):
            if around == 0:
                yield row
            elif isinstance(row, BadRow):
                yield replace(row, position=layout.position(around, row.position))
            else:
                yield replace(row, position=layout.position(around, row.position), round=around)


def _window(scanned: Scanned, rows: Iterator[Row | BadRow]) -> list[Row | BadRow]:
    """The next rows of a source; raises DataError where its file is no longer the one that was scanned when they have been read."""
    try:
        window = list(islice(rows, WINDOW_ROWS))
    except DataError as error:
        if unchanged(scanned):
            raise
        raise _changed(scanned) from error
    if not unchanged(scanned):
        raise _changed(scanned)
    return window


def _rows(scanned: Scanned, data: DataConfig, first: int, wanted: list[range]) -> Iterator[Row | BadRow]:
    """The ``wanted`` rows of a source, by positions among its own; ``first`` is where it begins in the input."""
    found = entries(scanned.source, data, wanted)
    for position in chain.from_iterable(wanted):
        entry = next(found, None)
        if entry is None:
            raise _changed(scanned)
        yield _row(scanned, data, entry, first + position)


def _row(scanned: Scanned, data: DataConfig, entry: Entry, position: int) -> Row | BadRow:
    text = ""
    try:
        columns = entry.parse()
        try:
            return Row(position, row_key(columns, data, position), columns, place(scanned.source, entry, position))
        except UnreadableError:
            text = json_text(columns)
            raise
    except UnreadableError as error:
        return BadRow(
            position,
            f"{place(scanned.source, entry, position)}: {error}",
            error.text or text,
            entry.line,
            None if data.key else str(position),
        )


def _changed(scanned: Scanned) -> DataError:
    return DataError(
        f"{scanned.source.path} changed since it was scanned at the start. Let whatever writes it finish, then continue with the same "
        "command (without --overwrite)."
    )
