"""How a template sees what is not there: an absent or null column, and a null inside a column."""

import json
import re
from typing import Any

from jinja2 import StrictUndefined


class Absent(StrictUndefined):
    """An undefined value. It can't be printed or used, but is false, so that ``{% if column %}`` tests for presence."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


class NullInside(Absent):
    """A null inside a column. Like an absent column, it can't be printed or used, but compared with none."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return is_null(other)

    def __ne__(self, other: object) -> bool:
        return not is_null(other)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return repr(None)


def undefined_nulls(value: Any, path: str) -> Any:
    """Returns a column's value with ``NullInside`` for each null in it: filters would make the text "None" of these."""
    if not _holds_null(value):
        return value
    if isinstance(value, dict):
        return {key: undefined_nulls(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [undefined_nulls(inner, f"{path}[{place}]") for place, inner in enumerate(value)]
    return NullInside(name=path)


def _holds_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return any(map(_holds_null, value)) if isinstance(value, list | tuple) else value is None


NULL_INSIDE = re.compile(r"'(?P<path>(?P<column>[^.\[]+)[.\[].*)' is undefined")  # what Jinja says of a ``NullInside``


def is_null(value: object) -> bool:
    """Returns True for a null, and for what stands for one."""
    return value is None or isinstance(value, Absent)


def as_json(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON, with null for the nulls in it. Raises UndefinedError for a value that is itself null or absent."""

    def null(inner: object) -> None:
        if not is_null(inner):
            raise TypeError(f"Object of type {type(inner).__name__} is not JSON serializable")

    if isinstance(value, Absent):
        str(value)  # raises
    return json.dumps(value, ensure_ascii=False, indent=indent, default=null)
