"""What a run was started with against what it is continued with: lines that name each difference.

Works on plain JSON values; knows no config schema and no file format. Inputs may grow at their end, nothing else may change.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

COLUMN = "column "

_REFERENCE = "score.reference"  # null where there is none, else keys below it
_SHOWN = 120


def identity_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One line a key whose value differs; both are flat: key path or name of a fingerprint -> JSON value."""
    now = json.loads(json.dumps(now))  # tuples are lists once stored
    missing = object()
    changed = [key for key in sorted(stored.keys() | now.keys()) if stored.get(key, missing) != now.get(key, missing)]
    if _REFERENCE in changed and (stored.get(_REFERENCE, missing) is None or now.get(_REFERENCE, missing) is None):
        # Its settings and fingerprints come and go with it.
        lines = [_line(stored, now, key) for key in changed if not key.startswith(_REFERENCE)]
        had, has = ("none", "one") if _REFERENCE in stored else ("one", "none")
        return [*lines, f"{_REFERENCE}: the run has {had}, the config now says {has}"]
    return [_line(stored, now, key) for key in changed]


def _line(stored: dict[str, Any], now: dict[str, Any], key: str) -> str:
    return f"{key}: the run has {_shown(stored, key)}, {_source_of(key)} {_shown(now, key)}"


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """The records' columns as part of a run's identity: name -> type, the input's columns one by one."""
    columns: dict[str, str] = {}
    for field in schema:
        inner = list(field.type) if field.name == "input" and pa.types.is_struct(field.type) else []
        columns |= {f"{COLUMN}input.{child.name}": _type(child) for child in inner} or {f"{COLUMN}{field.name}": _type(field)}
    return columns


def _type(field: pa.Field) -> str:
    return f"{field.type} (JSON)" if b"json" in (field.metadata or {}) else str(field.type)


def without_consequences(lines: list[str]) -> list[str]:
    """The lines without those on columns, where others say what changed them; with a hint where nothing else does."""
    causes = [line for line in lines if not line.startswith(COLUMN)]
    if causes or not lines:
        return causes
    return [*lines, "(rows that were added may not change the columns: a new run takes any, or names in data.keep those that it wants)"]


def _source_of(key: str) -> str:
    return "the input now gives" if key.startswith(COLUMN) else "the config now says"


def _shown(values: dict[str, Any], key: str) -> str:
    if key not in values:
        return "nothing"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def inputs_drift(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One line a way in which the inputs changed other than by growing at their end; none when they are equal or extended.

    Both are ``{"limit": int | None, "sources": [{"path", "bytes", "sha256", "rows", "appendable"}]}``: the sources that have
    rows before the limit, in reading order; ``sha256`` over their ``bytes`` as they lie on disk; ``appendable`` marks
    uncompressed formats of one row a line. Content counts, not its path. The last old source may have grown if its old
    content is still its beginning; sources may follow it; the limit may be longer. Reads a grown file again.
    Raises OSError where it cannot be read.
    """
    had, has = covered_rows(stored), covered_rows(now)
    if has < had and has == now["limit"]:  # what lies behind the limit is not listed: it would look changed
        return [f"data.limit: the run covers {had} rows, the config now says {has}"]
    return list(_changed_sources(stored["sources"], now["sources"]))


def covered_rows(inputs: dict[str, Any]) -> int:
    """How many rows the inputs give under their limit."""
    rows = sum(source["rows"] for source in inputs["sources"])
    return rows if inputs["limit"] is None else min(rows, inputs["limit"])


def _changed_sources(stored: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[str]:
    for number, old in enumerate(stored, start=1):
        if number > len(now):
            yield f"data.path: source {number}, {old['path']}, is gone"
            continue
        new = now[number - 1]
        if (old["sha256"], old["bytes"]) == (new["sha256"], new["bytes"]):
            continue
        if number < len(stored):
            yield f"data.path: source {number} was {_source(old)}, is now {_source(new)}"
        elif not _grown(old, new):
            yield f"data.path: source {number} was {_source(old)}, is now {_source(new)}, which does not continue it"


def _source(source: dict[str, Any]) -> str:
    return f"{source['path']} ({source['rows']} rows, {source['bytes']} bytes, sha256 {source['sha256'][:12]})"


def _grown(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether ``new`` is ``old`` with whole lines appended, by the bytes themselves."""
    if not (old["appendable"] and new["appendable"] and new["bytes"] > old["bytes"] and new["rows"] >= old["rows"]):
        return False
    digest, left, last = hashlib.sha256(), old["bytes"], b"\n"
    with Path(new["path"]).open("rb") as file:
        while left and (piece := file.read(min(left, 1 << 20))):
            digest.update(piece)
            left, last = left - len(piece), piece[-1:]
        following = file.read(1)
    if left or digest.hexdigest() != old["sha256"]:
        return False
    # Text glued to an unfinished last line would change a row that may be done.
    return last == b"\n" or following in (b"\n", b"\r")
