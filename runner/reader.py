"""The input's rows, streamed in order with position and key; a row that cannot be read comes as a BadRow.

Reads what the pre-scan found and nothing else: a file that changed since stops the job. Memory does not grow with the rows.
"""

from collections.abc import Callable, Iterator

from ..configs.schema import DataConfig
from .column_types import json_text
from .entries import entries, place, row_key
from .errors import DataError
from .inputs import Scan, Scanned, unchanged
from .lines import Entry, UnreadableError
from .records import BadRow, Row


def read(scan: Scan, data: DataConfig, skip: Callable[[int], bool]) -> Iterator[Row | BadRow]:
    """The rows of all sources in order; positions are 0-based and count every row, bad ones too.

    A row for whose position ``skip`` is true is passed over without being parsed. Raises DataError when a source is not
    the one that was scanned.
    """
    position = 0
    for scanned in scan.sources:
        if position == scan.rows:
            return
        if not unchanged(scanned):
            raise _changed(scanned)
        end = position + scanned.rows
        for entry in entries(scanned.source, data):
            if position == scan.rows:
                return
            if position == end:
                raise _changed(scanned)
            if not skip(position):
                yield _row(scanned, data, entry, position)
            position += 1
        if position != end:
            raise _changed(scanned)


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
        f"{scanned.source.path} changed since it was scanned at the start. Let whatever writes it finish, then run the same command again."
    )
