"""Finds a value in a row by column name or dotted path, and makes the error for a column that no row has.

An absent column and a null column are the same here, as in Arrow. Knows no files.
"""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from ...configs.visible import visible
from ..core.errors import DataError

SHOWN = 30  # columns that a message names


def lookup(columns: dict[str, Any], path: str) -> Any:
    """Returns the value at ``path`` ("id", "meta.id"), or None if a part of it is absent or null.

    At every level, a column whose name is the whole path wins over the dotted reading.

    >>> lookup({"meta": {"id": 7}, "a.b": 1}, "meta.id"), lookup({"a.b": 1}, "a.b"), lookup({}, "x")
    (7, 1, None)
    """
    if path in columns:
        return columns[path]
    head, dot, rest = path.partition(".")
    inner = columns.get(head)
    return lookup(inner, rest) if dot and isinstance(inner, dict) else None


def column_of(columns: Collection[str], path: str) -> str | None:
    """Returns the column that ``path`` starts from, or None if there is no such column."""
    if path in columns:
        return path
    head = path.partition(".")[0]
    return head if head in columns else None


def require_column(columns: Collection[str], path: str, option: str) -> None:
    """Raises DataError if no row has the column of ``path``. ``option`` is the config key that asks for it, such as ``data.key``.

    An empty dataset has no columns at all, and raises nothing.
    """
    if columns and column_of(columns, path) is None:
        raise missing_column(columns, path, option)


def missing_column(columns: Collection[str], name: str, option: str) -> DataError:
    """Returns the error for a column that no row has. It names the nearest column, and all columns."""
    near = get_close_matches(name, columns, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    ordered = [*near, *(column for column in columns if column not in near)]
    more = f" … and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return DataError(f"{option}: no row has a column {name!r}.{hint} The columns are: {', '.join(map(visible, ordered[:SHOWN]))}{more}.")
