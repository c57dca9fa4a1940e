"""Files of JSON lines that show their damage: the last key of each line, "check", is the checksum of the rest.

Knows nothing of the contents.
"""

import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from .atomic import append_bytes, atomic_write, sync_file

log = logging.getLogger("mlx_bulk")

_CHECK = re.compile(rb',?"check":"([0-9a-f]{16})"}$')


def append_line(path: Path, value: dict[str, Any], durable: bool = True) -> None:
    """Appends ``value`` as one line of JSON whose last key, "check", is the checksum of the rest.

    durable: the line outlives a power cut, for which a disk takes some milliseconds. Any line outlives the process.

    Raises ValueError where ``value`` has a key "check" of its own or a number that JSON does not have (NaN, infinity).
    """
    if "check" in value:
        raise ValueError('a checksummed line cannot have a key "check" of its own')
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    comma = b"," if value else b""
    append_bytes(path, body[:-1] + comma + b'"check":"' + checksum(body) + b'"}\n')
    if durable:
        sync_file(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the values of the whole lines of ``path``, without their checksums. A missing file has none.

    Passes over damaged lines and a torn tail and leaves them there, so it may read a file while it is written.
    """
    return [value for _, value in _lines(path) if value is not None]


def damaged_lines(path: Path) -> list[int]:
    """Returns the numbers, from 1, of the lines whose checksum does not fit. A tail without a line end does not count."""
    return [number for number, (line, value) in enumerate(_lines(path), start=1) if value is None and line.endswith(b"\n")]


def salvage_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Reads as ``read_lines`` does, and leaves only whole lines in the file, so that lines can be appended again.

    A torn tail is cut off. Damaged lines are taken out, and the file as it was is kept beside it as NAME.damaged. Returns the
    values, and how many lines were damaged.
    """
    lines = _lines(path)
    values = [value for _, value in lines if value is not None]
    whole = [line for line, value in lines if value is not None]
    damaged = sum(value is None and line.endswith(b"\n") for line, value in lines)
    if damaged:
        aside = path.with_name(path.name + ".damaged")
        atomic_write(aside, b"".join(line for line, _ in lines))
        atomic_write(path, b"".join(whole))
        log.warning("%s: %d damaged lines (their checksums do not fit) are taken out; the file as it was is %s", path, damaged, aside.name)
    elif len(whole) < len(lines):
        torn, kept = len(lines[-1][0]), sum(map(len, whole))
        log.warning("%s: cut off %d bytes after the last whole line", path, torn)
        os.truncate(path, kept)
        sync_file(path)
    return values, damaged


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Returns each line with its line end, and its value: None where the checksum does not fit."""
    *whole, tail = (path.read_bytes() if path.exists() else b"").split(b"\n")  # not splitlines: a flipped bit may make a \r
    lines = [line + b"\n" for line in whole] + ([tail] if tail else [])
    return [(line, _parse(line)) for line in lines]


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n") or not (check := _CHECK.search(line[:-1])):
        return None
    body = line[: check.start()] + b"}"
    return json.loads(body) if checksum(body) == check[1] else None


def checksum(body: bytes) -> bytes:
    """Returns 16 hex digits that show damage, but not malice."""
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()
