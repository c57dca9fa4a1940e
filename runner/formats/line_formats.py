"""Reads formats with one row a line: JSON lines and plain text.

Entries are parsed on demand, and unwanted rows are skipped without parsing. A bad line spoils only its own row. Knows no positions,
keys or column types.
"""

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from ..core.errors import DataError
from .entry import ALL_ROWS, Entry, UnreadableError
from .source import Source, open_stream, source_errors

BOM = b"\xef\xbb\xbf"
MAX_DEPTH = 200  # deeper values overflow the stack of json.dumps when they are written


def line_entries(source: Source, ranges: Sequence[range] = ALL_ROWS) -> Iterator[Entry]:
    """Yields the entries in ``ranges`` of a jsonl or text source. Skips blank lines.

    ``ranges``: ascending ranges of positions among the source's rows.
    """
    with source_errors(source):
        if source.format == "jsonl":
            _refuse_document(source)
        parse = {"jsonl": parse_object, "text": _parse_text}[source.format]
        with open_stream(source) as stream:
            lines, number, at = raw_lines(stream), 0, 0
            for span in filter(None, ranges):
                number += _skip_rows(lines, span.start - at)
                left, at = len(span), span.stop
                for raw in lines:
                    number += 1
                    if raw.strip():
                        yield Entry(number, partial(parse, raw))
                        left -= 1
                        if not left:
                            break


def raw_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yields lines with their ends, split at \\n alone because JSON strings may hold U+2028 and the like. Drops a BOM at the start."""
    first = stream.readline().removeprefix(BOM)
    return chain([first] if first else [], stream)


def _skip_rows(lines: Iterator[bytes], rows: int) -> int:
    """Skips ``rows`` lines that are not blank, at the speed of iteration. Returns how many lines it skipped, with the blank ones."""
    skipped = 0
    while rows:
        blank = [*map(bytes.isspace, islice(lines, min(rows, 1 << 16)))]
        if not blank:
            break
        skipped += len(blank)
        rows -= len(blank) - sum(blank)
    return skipped


def _refuse_document(source: Source) -> None:
    """Raises DataError for a .json file that is one document, once instead of an error for each of its lines."""
    if ".json" not in Path(source.path.lower()).suffixes[-2:]:
        return
    with open_stream(source) as stream:
        first = next((raw.strip() for raw in raw_lines(stream) if raw.strip()), b"")
    if first.startswith(b"["):
        raise DataError(f"{source.path} is one JSON array; data.format jsonl is one object a line. Remove data.format, or set it to json.")
    if first == b"{":
        raise DataError(
            f"{source.path} is one JSON object; an array of objects, or one object a line, is expected. "
            f"Where its rows are a list in it, take that out: jq '.rows' {source.path} > rows.json"
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


def parse_object(raw: bytes) -> dict[str, Any]:
    """Returns the JSON object in ``raw``. Raises UnreadableError for anything else."""
    text = _decode(raw)
    try:
        value: object = _JSON.decode(text)
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise RecursionError
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        fault = f"{error.msg.removesuffix(' at')} at column {error.pos + 1}"  # some of Python's messages end so, for a place to follow
        mark = "a byte order mark in the middle of the file" if text.startswith("\ufeff") else fault
        raise UnreadableError(f"not valid JSON: {mark}", text) from None
    except UnicodeEncodeError:
        raise UnreadableError("holds half of a surrogate pair (\\ud800-\\udfff), which is no character", text) from None
    except RecursionError:
        raise UnreadableError(f"nested deeper than {MAX_DEPTH} levels", text) from None
    except _NoJsonError as error:
        raise UnreadableError(f"not valid JSON: {error}", text) from None
    except ValueError:  # Python limits the digits of integers, because conversion takes quadratic time
        raise UnreadableError(f"holds an integer of more than {sys.get_int_max_str_digits()} digits", text) from None
    if not isinstance(value, dict):
        raise UnreadableError(f"expected a JSON object, found {_KINDS[type(value)]}", text)
    return value


class _NoJsonError(ValueError):
    """Raised for text that Python accepts as JSON and other readers don't."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object. Raises _NoJsonError for a name that stands twice, because either value may be meant."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _NoJsonError(f"the name {twice!r} stands twice in one object")
    return value


def _refuse_constant(name: str) -> None:
    raise _NoJsonError(f"{name} is Python's; JSON has no such number, write null")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _NoJsonError(f"{digits if len(digits) < 20 else digits[:19] + '…'} is beyond what a float64 holds")
    return value


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite)
_SURROGATE = re.compile(rb"\\u[dD]")
_KINDS: dict[type, str] = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [item for node in level if isinstance(node, dict | list) for item in (node.values() if isinstance(node, dict) else node)]
    return depth
