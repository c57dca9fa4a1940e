"""Small JSON files that people can read and that show their damage: the last key, "check", is the checksum of the rest.

A reader gets what was written, or an error, never something in between. Knows nothing of the contents.
"""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from .atomic import atomic_write
from .checked_lines import checksum

_CHECK = re.compile(rb'"check": "([0-9a-f]{16})"\n}\n$')
_CLOSE = b'"\n}\n'


def json_number(value: float | None) -> float | None:
    """Returns the number; None, which becomes null, for NaN and infinities, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def write_document(path: Path, values: dict[str, Any], writer: str = "") -> None:
    """Writes ``values`` as indented JSON, whole or not at all. ``writer``: as of ``atomic.replacing``.

    Raises ValueError where they have a key "check" of their own or a number that JSON does not have (NaN, infinity), and OSError.
    """
    if "check" in values:
        raise ValueError('a checksummed document cannot have a key "check" of its own')
    text = json.dumps({**values, "check": ""}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    body = text.encode("utf-8", "surrogatepass").removesuffix(_CLOSE)  # a path may hold bytes that are not UTF-8
    atomic_write(path, body + checksum(body) + _CLOSE, writer)


def read_document(path: Path) -> dict[str, Any]:
    """Reads what ``write_document`` wrote, without the checksum. The bytes are checked before they are parsed.

    Raises ValueError where they are not the bytes that were written, OSError where the file is missing or cannot be read.
    """
    content = path.read_bytes()
    check = _CHECK.search(content)
    if check is None or checksum(content[: check.start(1)]) != check[1]:
        raise ValueError("it is damaged: its checksum does not fit")
    values: dict[str, Any] = json.loads(content)
    del values["check"]
    return values


def digest(value: Any) -> str:
    """Returns the hex sha256 of a JSON value. The order of keys does not count, nor does writing and reading the value."""
    plain = json.loads(json.dumps(value))  # keys that are numbers are strings once written
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
