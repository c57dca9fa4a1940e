"""A row's key, and its place for messages."""

from typing import Any

from ...configs.data import DataConfig
from ...configs.explain import shown
from ..formats.entry import Entry, UnreadableError
from ..formats.source import Source
from .column_paths import lookup


def row_key(columns: dict[str, Any], data: DataConfig, position: int) -> str:
    """Returns the row's key as a string, or its position where no column is the key.

    Raises UnreadableError for a key that is neither a string nor a number: null, true or false, a list or a mapping.
    """
    if data.key_column is None:
        return str(position)
    if data.format == "openai":
        return _custom_id(columns.get(data.key_column))
    value = lookup(columns, data.key_column)
    if value is None or isinstance(value, bool | dict | list | bytes):
        found = "null or missing" if value is None else shown(value) if isinstance(value, bool) else f"a {type(value).__name__}"
        raise UnreadableError(f"the key {data.key_column!r} is {found}; a string or a number is expected", "")
    return str(value)


def _custom_id(value: object) -> str:
    """Returns the key of a line of a Batch file."""
    if isinstance(value, str) and value:
        return value
    found = "null or missing" if value is None else "empty" if value == "" else shown(value)
    raise UnreadableError(f"the key 'custom_id' is {found}; a string is expected, by which the answer is known", "")


def row_place(source: Source, entry: Entry, position: int) -> str:
    """Returns a row's place for messages: file and 1-based line, or file and position in the input."""
    return f"{source.path}, line {entry.line}" if entry.line is not None else f"{source.path}, row {position} of the input"
