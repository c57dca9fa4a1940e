"""A row's choices and which of them is right, out of its columns. Knows no tokens."""

from collections.abc import Callable, Collection
from typing import Any

from ..configs.explain import shown
from ..runner.columns import lookup, require_column
from ..runner.errors import RowError
from ..runner.prompts import Columns, compile_template


def choices_of(columns: Columns, path: str) -> tuple[str, ...]:
    """The choices at ``path``, as they are given. Raises RowError where there is no list of strings."""
    found = lookup(columns, path)
    if not isinstance(found, list) or not found:
        raise RowError("template", f"score.choices: {path!r} holds {shown(found)}; a list with at least one string is expected")
    if wrong := [choice for choice in found if not isinstance(choice, str)]:
        raise RowError("template", f"score.choices: {path!r} holds {shown(wrong[0])} among the choices; strings are expected")
    return tuple(found)


def compile_label(label: str, columns: Collection[str]) -> Callable[[Columns], Any]:
    """What reads a row's label: a Jinja template where it looks like one, else a column or dotted path.

    Raises ConfigError for a template that cannot be parsed, DataError for a column that no row has.
    """
    if "{{" in label or "{%" in label:
        return compile_template(label, "score.label", columns)
    require_column(columns, label, "score.label")
    return lambda row: lookup(row, label)


def label_index(label: Any, choices: tuple[str, ...]) -> int | None:
    """Index of the right choice: ``label`` is an index, or a choice's text, or an index in digits; None where it is null or "".

    Raises RowError for anything else.
    """
    if label is None or label == "":
        return None
    if isinstance(label, str) and label in choices:
        return choices.index(label)
    index = None
    if isinstance(label, str) and label.isascii() and label.isdigit():
        index = int(label)
    elif isinstance(label, int) and not isinstance(label, bool):
        index = label
    elif isinstance(label, float) and label.is_integer():  # a table's integers where some are null
        index = int(label)
    if index is not None and 0 <= index < len(choices):
        return index
    expected = f"an index from 0 to {len(choices) - 1}, or the text of a choice"
    raise RowError("template", f"score.label: found {shown(label)}; expected {expected}: {', '.join(map(shown, choices))}")
