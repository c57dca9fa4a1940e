"""Reads a file that is one JSON array of objects, streamed: one element at a time, on one line or on many.

A bad element spoils only its own row. An array that does not end is an error of the file. Knows no positions, keys or column types.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from ..core.errors import DataError
from .entry import ALL_ROWS, Entry
from .line_formats import BOM, parse_object
from .source import Source, open_stream, source_errors

MAX_ELEMENT = 1 << 28  # without a limit one missing quote would take the whole file into memory
_PIECE = 1 << 20
_HEAD = 1 << 16

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_BETWEEN = re.compile(rb'(?:[^",\[\]{}]++|%b)*+' % _STRING, re.DOTALL)  # up to the next comma or bracket outside of strings
_WITHIN = re.compile(rb'(?:[^"\[\]{}]++|%b)*+' % _STRING, re.DOTALL)  # up to the next bracket outside of strings


def holds_array(source: Source) -> bool:
    """Returns True for a source whose content is one JSON array.

    A .json file is one if it begins with "[". In a file of lines a first line that begins so may be a bad row beside good ones: such a file
    is one array only where the line is "[" alone, or where neither this line nor the next stands for itself.
    """
    with source_errors(source), open_stream(source) as stream:
        head = stream.read(_HEAD).removeprefix(BOM).lstrip()
    if not head.startswith(b"["):
        return False
    if ".json" in Path(source.path.lower()).suffixes[-2:]:
        return True
    first, second = [*head.split(b"\n", maxsplit=2), b"", b""][:2]
    return first.strip() == b"[" or (bool(second.strip()) and not _is_json(first) and not _is_json(second))


def array_entries(source: Source, ranges: Sequence[range] = ALL_ROWS) -> Iterator[Entry]:
    """Yields the elements in ``ranges`` of a json source as entries. Raises DataError for a file that is no whole array."""
    with source_errors(source), open_stream(source) as stream:
        elements, at = _elements(stream, source.path), 0
        for span in ranges:
            for line, raw in elements:
                at += 1
                if at > span.start:
                    yield Entry(line, partial(parse_object, raw))
                if at >= span.stop:
                    break


def _elements(stream: IO[bytes], path: str) -> Iterator[tuple[int, bytes]]:
    """Yields each element of the array: the 1-based line on which it begins, and its text."""
    buffer = stream.read(_PIECE).removeprefix(BOM)
    while not (begun := buffer.lstrip()) and (more := stream.read(_PIECE)):
        buffer += more
    if not begun.startswith(b"["):
        raise DataError(f"{path}: is no JSON array: it begins with {begun[:20].decode(errors='replace')!r}. Correct data.format.")
    at = buffer.index(b"[") + 1
    line = 1 + buffer.count(b"\n", 0, at)
    while True:
        end = _end_of_element(buffer, at)
        if end is None:
            rest = buffer[at:]
            more = stream.read(max(_PIECE, len(rest))) if len(rest) < MAX_ELEMENT else b""
            if not more:
                raise DataError(
                    f"{path}: the array does not end: the file is cut off, or the element that begins on line {_first_line(rest, line)} "
                    "lacks a bracket or a quote. Replace the file."
                )
            buffer, at = rest + more, 0
            continue
        raw, last = buffer[at:end], buffer[end : end + 1] == b"]"
        if raw.strip() or not last:  # none before the end of an empty array
            yield _first_line(raw, line), raw.strip()
        line += raw.count(b"\n")
        at = end + 1
        if last:
            _refuse_more(buffer[at:], stream, path, line)
            return


def _end_of_element(buffer: bytes, at: int) -> int | None:
    """Returns where the comma or bracket behind the element stands that begins at ``at``; None where the buffer ends before it."""
    depth = 0
    while True:
        found = (_WITHIN if depth else _BETWEEN).match(buffer, at)
        assert found is not None, "it matches the empty text"
        at = found.end()
        mark = buffer[at : at + 1]
        if mark in (b"", b'"'):  # the buffer ends, or a string in it does not
            return None
        if not depth and mark in (b",", b"]"):
            return at
        depth = depth + 1 if mark in (b"[", b"{") else max(0, depth - 1)
        at += 1


def _first_line(raw: bytes, line: int) -> int:
    return line + raw[: len(raw) - len(raw.lstrip())].count(b"\n")


def _refuse_more(buffer: bytes, stream: IO[bytes], path: str, line: int) -> None:
    while buffer:
        if buffer.strip():
            found = buffer.strip()[:20].decode(errors="replace")
            at = f"{path}, line {_first_line(buffer, line)}"
            raise DataError(f"{at}: {found!r} stands behind the end of the array. Remove what follows it.")
        line += buffer.count(b"\n")
        buffer = stream.read(_PIECE)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
