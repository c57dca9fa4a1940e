"""Finds a value in a row by column name or dotted path, and makes the error for a column that no row has.

An absent column and a null column are the same here, as in Arrow. Knows no files.
"""

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, cast

import pyarrow as pa

from ...configs.visible import visible
from ..core.errors import DataError

SHOWN = 30  # columns that a message names


def lookup(columns: dict[str, Any], path: str) -> Any:
    """Returns the value at ``path`` ("id", "meta.id"), or None if a part of it is absent or null.

    At every level, a column whose name is the whole path wins over the dotted reading. A name on the way may hold dots too; the
    shortest that leads to a value counts.

    >>> lookup({"meta": {"id": 7}, "a.b": 1}, "meta.id"), lookup({"a.b": {"c": 2}}, "a.b.c"), lookup({}, "x")
    (7, 2, None)
    """
    if path in columns:
        return columns[path]
    inner = ((columns.get(head), rest) for head, rest in _readings(path))
    values = (lookup(value, rest) for value, rest in inner if isinstance(value, dict))
    return next((value for value in values if value is not None), None)


def _readings(path: str) -> Iterator[tuple[str, str]]:
    """Yields each way to read a path as a name and a path below it, the shortest name first."""
    parts = path.split(".")
    for at in range(1, len(parts)):
        yield ".".join(parts[:at]), ".".join(parts[at:])


def columns_on(columns: Collection[str], path: str) -> list[str]:
    """Returns the columns that ``path`` may start from: the one of its whole name, or all that a dotted reading begins with."""
    return [path] if path in columns else [head for head, _ in _readings(path) if head in columns]


def require_column(columns: Collection[str], path: str, option: str) -> None:
    """Raises DataError if no row has the column of ``path``. ``option`` is the config key that asks for it, such as ``data.key``.

    An empty dataset has no columns at all, and raises nothing. columns: names; or names with their types, and then the path must lead
    to something below a column of objects, too. A type of None says that nothing is known of what lies below.
    """
    heads = columns_on(columns, path)
    if columns and not heads:
        raise missing_column(columns, path, option)
    types = cast(Mapping[str, pa.DataType | None], columns) if isinstance(columns, Mapping) else {}
    below = [(head, types.get(head)) for head in heads]
    if heads and not any(kind is None or _leads(kind, path[len(head) + 1 :]) for head, kind in below):
        raise _missing_below(heads[0], types[heads[0]], path, option)


def _leads(kind: pa.DataType, path: str) -> bool:
    """Returns whether a value of this type may have something at ``path``. A column that is always null may have anything."""
    if not path or pa.types.is_null(kind):
        return True
    fields = {field.name: field.type for field in cast(pa.StructType, kind)} if pa.types.is_struct(kind) else {}
    return any(_leads(fields[head], path[len(head) + 1 :]) for head in columns_on(fields, path))


def _missing_below(head: str, kind: pa.DataType | None, path: str, option: str) -> DataError:
    """Returns the error for a path that begins with a column and leads to nothing in it."""
    hint, paths = _nearest_first(path, list(_paths(head, kind)))
    holds = f"There are: {paths}." if paths else f"The column {visible(head)} holds no objects."
    return DataError(f"{option}: no row has anything at {path!r}.{hint} {holds}")


def _paths(head: str, kind: pa.DataType | None) -> Iterator[str]:
    """Yields the dotted paths of all that lies below a column of objects."""
    for field in cast(pa.StructType, kind) if kind is not None and pa.types.is_struct(kind) else []:
        path = f"{head}.{field.name}"
        yield path
        yield from _paths(path, field.type)


def missing_column(columns: Collection[str], name: str, option: str, spelling: str = "") -> DataError:
    """Returns the error for a column that no row has. It names the nearest column, and all columns.

    ``spelling``: a sentence on how the column that is likely meant is written, in place of the nearest.
    """
    hint, listed = _nearest_first(name, columns)
    hint = f" {spelling}" if spelling else hint
    return DataError(f"{option}: no row has a column {name!r}.{hint} The columns are: {listed}.")


def _nearest_first(name: str, known: Collection[str]) -> tuple[str, str]:
    """Returns the hint at the nearest of the ``known`` names, and a list of some of them, the nearest first."""
    near = get_close_matches(name, known, n=1)
    ordered = [*near, *(other for other in known if other not in near)]
    more = f" … and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return f" Did you mean {near[0]!r}?" if near else "", ", ".join(map(visible, ordered[:SHOWN])) + more
