"""Rows of the formats that are text: JSON lines, CSV, plain text.

Yields entries that are parsed only when asked for, so that a row to be passed over costs its bytes and no more. A bad line
spoils its own row alone. Does not know positions, keys or column types.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .errors import DataError
from .sources import Source, naming, open_stream

BOM = b"\xef\xbb\xbf"
MAX_DEPTH = 200  # deeper values overflow the stack of json.dumps when they are written out again
MAX_CELL = 1 << 26  # csv's own limit, 131072 characters, is less than a long document; none at all lets one quote eat the file


class UnreadableError(ValueError):
    """This entry is no row; the message says why, ``text`` is what stood there."""

    def __init__(self, message: str, text: str):
        super().__init__(message)
        self.text = text


@dataclass(slots=True, frozen=True)
class Entry:
    """One row as it stands in its source: the 1-based line it starts on (None in tables), and how to parse it.

    ``parse`` returns the columns as plain Python values, or raises UnreadableError.
    """

    line: int | None
    parse: Callable[[], dict[str, Any]]


def line_entries(source: Source) -> Iterator[Entry]:
    """The entries of a jsonl, csv or text source, in order, blank lines left out."""
    with naming(source):
        if source.format == "csv":
            yield from _csv_entries(source)
            return
        if source.format == "jsonl":
            _refuse_document(source)
        parse = _parse_object if source.format == "jsonl" else _parse_text
        for number, raw in _lines(source):
            if raw.strip():
                yield Entry(number, partial(parse, raw))


def _lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """Numbered lines with their end, split on \\n alone: U+2028 and its like are legal inside JSON strings."""
    with open_stream(source) as stream:
        for number, raw in enumerate(stream, start=1):
            yield number, raw.removeprefix(BOM) if number == 1 else raw


def _refuse_document(source: Source) -> None:
    """A .json file may be one pretty-printed document; say so once instead of calling each of its lines bad."""
    if ".json" not in Path(source.path.lower()).suffixes[-2:]:
        return
    first = next((raw.strip() for _, raw in _lines(source) if raw.strip()), b"")
    if first.startswith(b"[") or first == b"{":
        raise DataError(
            f"{source.path} is one JSON document; one object a line is expected. Convert it with: jq -c '.[]' {source.path} > rows.jsonl"
        )


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        shown = raw.decode(errors="replace").rstrip("\r\n")
        raise UnreadableError(f"not valid UTF-8 (byte {error.start + 1} of the line)", shown) from None
    text = text.removesuffix("\n").removesuffix("\r")
    if "\0" in text:
        raise UnreadableError("holds a NUL byte", text)
    return text


def _parse_text(raw: bytes) -> dict[str, Any]:
    return {"text": _decode(raw)}


def _parse_object(raw: bytes) -> dict[str, Any]:
    text = _decode(raw)
    try:
        value: object = json.loads(text)
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise RecursionError
        if re.search(rb"\\u[dD]", raw):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise UnreadableError(f"not valid JSON: {error.msg} at column {error.pos + 1}", text) from None
    except UnicodeEncodeError:
        raise UnreadableError("holds half of a surrogate pair (\\ud800-\\udfff), which is no character", text) from None
    except RecursionError:
        raise UnreadableError(f"nested deeper than {MAX_DEPTH} levels", text) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise UnreadableError(f"not valid JSON: {error}", text) from None
    if not isinstance(value, dict):
        raise UnreadableError(f"expected a JSON object, found {_KINDS[type(value)]}", text)
    return value


_KINDS: dict[type, str] = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [item for node in level if isinstance(node, dict | list) for item in (node.values() if isinstance(node, dict) else node)]
    return depth


def _csv_entries(source: Source) -> Iterator[Entry]:
    """CSV by its header; a record may span lines inside quotes. Every value is a string, an empty cell is null."""
    record: list[str] = []

    def feed() -> Iterator[str]:
        for _, raw in _lines(source):
            record.append(raw.decode(errors="surrogateescape"))
            yield record[-1]

    csv.field_size_limit(MAX_CELL)
    delimiter = "\t" if ".tsv" in Path(source.path.lower()).suffixes[-2:] else ","
    reader = csv.reader(feed(), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    while True:
        record.clear()
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = error
        text = "".join(record)
        if not text.strip(" \r\n"):
            continue
        if header is None:
            header = _csv_header(source, cells, text)
        else:
            yield Entry(line, partial(_parse_cells, header, cells, text))


def _csv_header(source: Source, cells: list[str] | csv.Error, text: str) -> list[str]:
    if isinstance(cells, csv.Error) or not _is_clean(text):
        raise DataError(f"{source.path}: the header line cannot be read as CSV in UTF-8: {text.encode(errors='replace')[:200]!r}")
    twice = sorted({name for name in cells if cells.count(name) > 1})
    if twice:
        raise DataError(f"{source.path}: the header names a column twice: {', '.join(twice)}. Rename one of them.")
    return cells


def _parse_cells(header: list[str], cells: list[str] | csv.Error, text: str) -> dict[str, Any]:
    shown = text.encode(errors="surrogateescape").decode(errors="replace").rstrip("\r\n")
    if isinstance(cells, csv.Error):
        raise UnreadableError(f"not valid CSV: {cells}", shown)
    if not _is_clean(text):
        raise UnreadableError("not valid UTF-8, or holds a NUL byte", shown)
    if len(cells) != len(header):
        raise UnreadableError(f"has {len(cells)} cells where the header has {len(header)}", shown)
    return {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _is_clean(text: str) -> bool:
    """Neither bytes smuggled in by surrogateescape nor NUL."""
    return "\0" not in text and (text.isascii() or re.search("[\ud800-\udfff]", text) is None)
