"""Finds a value in a row by column name or dotted path, and makes the error for a column that no row has.

An absent column and a null column are the same here, as in Arrow. Knows no files.
"""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any

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

    An empty dataset has no columns at all, and raises nothing.
    """
    if columns and not columns_on(columns, path):
        raise missing_column(columns, path, option)


def missing_column(columns: Collection[str], name: str, option: str, spelling: str = "") -> DataError:
    """Returns the error for a column that no row has. It names the nearest column, and all columns.

    ``spelling``: a sentence on how the column that is likely meant is written, in place of the nearest.
    """
    near = get_close_matches(name, columns, n=1)
    hint = f" {spelling}" if spelling else f" Did you mean {near[0]!r}?" if near else ""
    ordered = [*near, *(column for column in columns if column not in near)]
    more = f" … and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return DataError(f"{option}: no row has a column {name!r}.{hint} The columns are: {', '.join(map(visible, ordered[:SHOWN]))}{more}.")
