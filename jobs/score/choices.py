"""Reads a row's choices, or any list of texts, and which of them is right, from its columns. Knows no tokens.

``option`` is the setting that asks for it, for messages; ``noun`` is what one of the texts is called there.
"""

import json
from collections.abc import Callable, Collection
from typing import Any

from ...configs.explain import shown
from ...runner.core.errors import RowError
from ...runner.data.column_paths import lookup, require_column
from ...runner.templates.chat_messages import Columns
from ...runner.templates.prompt_templates import compile_value


def read_choices(columns: Columns, path: str, option: str = "score.choices", noun: str = "choice") -> tuple[str, ...]:
    """Reads the choices at ``path``: a list of strings or, as CSV holds it, the JSON text of one. Raises RowError."""
    value = lookup(columns, path)
    choices = _parse(value) if isinstance(value, str) else value
    if not isinstance(choices, list) or not choices:
        expected = "a list with at least one string, or the JSON text of one, is expected"
        raise RowError("template", f"{option}: {path!r} holds {shown(value)}; {expected}")
    if wrong := [choice for choice in choices if not isinstance(choice, str)]:
        raise RowError("template", f"{option}: {path!r} holds {shown(wrong[0])} among the {noun}s; strings are expected")
    return tuple(choices)


def _parse(text: str) -> object:
    """Parses a JSON text; returns None where it is none."""
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair would fail later, and far from here
    except (ValueError, RecursionError):
        return None
    return value


def compile_label(label: str, columns: Collection[str], option: str = "score.label") -> Callable[[Columns], Any]:
    """Returns a function that reads a row's label: ``label`` is a Jinja template if it looks like one, else a column or dotted path.

    A template that is one expression, ``{{ answer }}``, gives its value unchanged: an integer stays one, as from a column.
    Raises ConfigError for a template that cannot be parsed, DataError for a column that no row has.
    """
    if "{{" in label or "{%" in label:
        return compile_value(label, option, columns)
    require_column(columns, label, option)
    return lambda row: lookup(row, label)


def label_index(label: Any, choices: tuple[str, ...], option: str = "score.label", noun: str = "choice") -> int | None:
    """Returns the index of the right choice; ``label`` is an index, a choice's text, or an index in digits. None for null or "".

    Raises RowError for anything else, and for digits that are one choice's text and another's index.
    """
    if label is None or label == "":
        return None
    index = _index(label)
    valid = index is not None and 0 <= index < len(choices)
    if isinstance(label, str) and label in choices:
        text = choices.index(label)
        if index is not None and valid and choices[index] != label:
            readings = f"it is the text of {noun} {text} and the index of {noun} {index}, {shown(choices[index])}"
            ways = f"{{{{ label | int }}}} for the index or {{{{ {noun}s.index(label) }}}} for the text"
            cure = f"set {option} to {ways}, with your columns' names"
            raise RowError("template", f"{option}: found {shown(label)}, which can be read in two ways: {readings}; {cure}")
        return text
    if valid:
        return index
    expected = f"an index from 0 to {len(choices) - 1}, or the text of a {noun}"
    raise RowError("template", f"{option}: found {shown(label)}; expected {expected}: {', '.join(map(shown, choices))}")


def _index(label: Any) -> int | None:
    """Returns the integer that a label is, or spells in digits, else None."""
    if isinstance(label, str):
        return int(label) if label.isascii() and label.isdigit() else None
    if isinstance(label, float) and label.is_integer():  # a table's integers where some are null
        return int(label)
    return label if isinstance(label, int) and not isinstance(label, bool) else None
