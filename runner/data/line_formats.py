"""Rows of the formats that hold one a line: JSON lines and plain text.

Yields entries that are parsed only when asked for, and passes over rows that nobody wants without a look at them. A bad line
spoils its own row alone. Does not know positions, keys or column types.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from ..core.errors import DataError
from .entry import EVERY, Entry, UnreadableError
from .sources import Source, open_stream, source_errors

BOM = b"\xef\xbb\xbf"
MAX_DEPTH = 200  # deeper values overflow the stack of json.dumps when they are written out again


def line_entries(source: Source, wanted: Sequence[range] = EVERY) -> Iterator[Entry]:
    """The ``wanted`` entries of a jsonl or text source, blank lines left out.

    ``wanted``: positions among the source's rows, as ranges that ascend.
    """
    with source_errors(source):
        if source.format == "jsonl":
            _refuse_document(source)
        parse = _parse_object if source.format == "jsonl" else _parse_text
        with open_stream(source) as stream:
            lines, number, at = raw_lines(stream), 0, 0
            for span in filter(None, wanted):
                number += _pass_over(lines, span.start - at)
                left, at = len(span), span.stop
                for raw in lines:
                    number += 1
                    if raw.strip():
                        yield Entry(number, partial(parse, raw))
                        left -= 1
                        if not left:
                            break


def raw_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines with their end, split on \\n alone (U+2028 and its like are legal inside JSON strings), less a BOM at the start."""
    first = stream.readline().removeprefix(BOM)
    return chain([first] if first else [], stream)


def _pass_over(lines: Iterator[bytes], rows: int) -> int:
    """Reads past ``rows`` lines that are not blank, at the speed of iteration; how many lines those were with the blank ones."""
    passed = 0
    while rows:
        blank = [*map(bytes.isspace, islice(lines, min(rows, 1 << 16)))]
        if not blank:
            break
        passed += len(blank)
        rows -= len(blank) - sum(blank)
    return passed


def _refuse_document(source: Source) -> None:
    """A .json file may be one pretty-printed document; say so once instead of calling each of its lines bad."""
    if ".json" not in Path(source.path.lower()).suffixes[-2:]:
        return
    with open_stream(source) as stream:
        first = next((raw.strip() for raw in raw_lines(stream) if raw.strip()), b"")
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
        value: object = _JSON.decode(text)
        if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise RecursionError
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        mark = "a byte order mark in the middle of the file" if text.startswith("\ufeff") else f"{error.msg} at column {error.pos + 1}"
        raise UnreadableError(f"not valid JSON: {mark}", text) from None
    except UnicodeEncodeError:
        raise UnreadableError("holds half of a surrogate pair (\\ud800-\\udfff), which is no character", text) from None
    except RecursionError:
        raise UnreadableError(f"nested deeper than {MAX_DEPTH} levels", text) from None
    except _NoJsonError as error:
        raise UnreadableError(f"not valid JSON: {error}", text) from None
    except ValueError:  # Python's limit against numbers that take for ever to convert
        raise UnreadableError(f"holds an integer of more than {sys.get_int_max_str_digits()} digits", text) from None
    if not isinstance(value, dict):
        raise UnreadableError(f"expected a JSON object, found {_KINDS[type(value)]}", text)
    return value


class _NoJsonError(ValueError):
    """Python takes it for JSON, and others do not."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names stand once each: of two values nobody can say which is meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _NoJsonError(f"the name {twice!r} stands twice in one object")
    return found


def _refuse_constant(name: str) -> None:
    raise _NoJsonError(f"{name} is Python's; JSON has no such number, write null")


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_SURROGATE = re.compile(rb"\\u[dD]")
_KINDS: dict[type, str] = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level:
        depth += 1
        level = [item for node in level if isinstance(node, dict | list) for item in (node.values() if isinstance(node, dict) else node)]
    return depth
