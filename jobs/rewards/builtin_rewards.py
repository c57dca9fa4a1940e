"""The reward functions that ship with the package, by the names that a config gives them, in the signature that a user's own have.

Loaded by path in the worker processes, as a user's file is: the standard library is all that it may import.
"""

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

# A run is continued where its functions have the versions that it began with. Raise one where the function gives other values.
VERSIONS = {"exact_match": 1, "last_number": 1, "regex": 1, "json_valid": 1, "length": 1}

# A minus behind a digit or a bracket is a subtraction; commas part thousands only; a point behind a word or a point ends it.
_NUMBER = re.compile(r"(?:(?<![\w)\].])[-−–])?[$€£¥₹]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w)\].])\.\d+)")
_PLAIN = str.maketrans({"−": "-", "–": "-"} | dict.fromkeys(",$€£¥₹", ""))
_MARK = "####"


def exact_match(completions: Sequence[Any], *, column: str, ignore_case: bool = False, **columns: Sequence[Any]) -> list[float | None]:
    """1 where the completion is the text in ``column``, whitespace around both left out; None where that is null."""

    def read(text: str) -> str:
        return text.strip().casefold() if ignore_case else text.strip()

    targets = _targets(columns, column, len(completions))
    return [
        None if target is None else float(read(_text(completion)) == read(str(target)))
        for completion, target in zip(completions, targets, strict=True)
    ]


def last_number(completions: Sequence[Any], *, column: str, **columns: Sequence[Any]) -> list[float | None]:
    """1 where the completion's last number is that in ``column`` (GSM8K: the one behind ``####``); None where that is null.

    Compared as decimals: 1,000 is 1000.0, and -$5 is -5. A text that has ``####`` is read behind the last of them that a number
    follows. Exponents, fractions, and spaces or odd commas between digits part numbers: the last of 3e2, 1/2 and 1 000 is 2, 2 and 0.
    Raises ValueError for a target without a number.
    """
    found: list[float | None] = []
    for completion, target in zip(completions, _targets(columns, column, len(completions)), strict=True):
        if target is None:
            found.append(None)
            continue
        expected = _last_number(str(target))
        if expected is None:
            raise ValueError(f"the column {column!r} holds no number: {str(target)[:60]!r}")
        found.append(float(_last_number(_text(completion)) == expected))
    return found


def regex(completions: Sequence[Any], *, pattern: str, **_: object) -> list[float | None]:
    """1 where ``pattern`` (Python's re; flags as in ``(?is)…``) is found in the completion."""
    compiled = re.compile(pattern)
    return [float(compiled.search(_text(completion)) is not None) for completion in completions]


def json_valid(completions: Sequence[Any], **_: object) -> list[float | None]:
    """1 where the completion is one JSON value (RFC 8259: no NaN, no infinity) and nothing beside it."""
    return [float(_is_json(_text(completion))) for completion in completions]


def length(completion_ids: Sequence[Sequence[int]], *, over: int = 0, per: float = 1.0, **_: object) -> list[float | None]:
    """Sampled tokens beyond ``over``, in units of ``per`` tokens; with a negative weight it is a penalty on long completions.

    ``over: 192, per: 64`` with weight -1 and max_tokens 256 is the soft overlong punishment of DAPO (arXiv 2503.14476, equation 13).
    """
    return [max(0, len(ids) - over) / per for ids in completion_ids]


def _text(completion: str | Sequence[Mapping[str, str]]) -> str:
    """A completion as text: of a chat, the content of the assistant's turn."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


def _targets(columns: Mapping[str, Sequence[Any]], path: str, count: int) -> Sequence[Any]:
    """The values of a column, or of a dotted path in one; ``count`` times None where there is none."""
    if path in columns:
        return columns[path]
    begun = [name for name in columns if path.startswith(f"{name}.")]
    if not begun:
        return [None] * count
    rows = zip(*(columns[name] for name in begun), strict=True)
    return [_value_at(dict(zip(begun, row, strict=True)), path) for row in rows]


def _value_at(value: object, path: str) -> Any:
    """The value at a dotted path in nested mappings, whose names may hold dots too, or None; as for every setting that names a column."""
    if not isinstance(value, dict):
        return None
    if path in value:
        return value[path]
    begun = sorted((name for name in value if path.startswith(f"{name}.")), key=len)
    found = (_value_at(value[name], path[len(name) + 1 :]) for name in begun)
    return next((inner for inner in found if inner is not None), None)


def _last_number(text: str) -> Decimal | None:
    parts = text.split(_MARK)
    for part in reversed(parts[1:] or parts):
        if found := _NUMBER.findall(part):
            return Decimal(found[-1].translate(_PLAIN))
    return None


def _is_json(text: str) -> bool:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON's")

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True
