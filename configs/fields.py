"""The types of settings. Each has the words that an error uses for the values it accepts.

Knows only pydantic's types. ``schema.py`` gives settings their types, and ``explain.py`` writes the errors.
"""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic_core import PydanticCustomError


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that a setting accepts, in the words of an error after "expected"."""

    words: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Marks when a setting is part of a run's identity. A setting without this mark always is.

    "set": where it is not its default. Runs that were begun before there was such a setting then keep their identity.
    """

    when: Literal["never", "deterministic", "set"]


FREE = Identity("never")
FROZEN_IF_DETERMINISTIC = Identity("deterministic")
FROZEN_IF_SET = Identity("set")


class Section(BaseModel):
    """A mapping of settings: frozen, strict about types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def contradiction(key: str, text: str) -> PydanticCustomError:
    """Returns an error about settings that contradict each other. ``key`` is relative to the section, "" for the section itself."""
    return PydanticCustomError("contradiction", "{text}", {"key": key, "text": text})


def nearest(key: str, valid: Iterable[str]) -> str | None:
    """Returns the valid name that ``key`` most likely means, or None if none is near."""
    close = difflib.get_close_matches(key, list(valid), n=1)
    return close[0] if close else None


def _named(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError("empty, or with a NUL character")
    return value


def _distinct(values: list[str]) -> list[str]:
    if len(set(values)) != len(values):
        twice = next(value for place, value in enumerate(values) if value in values[:place])
        raise contradiction("", f"found {json.dumps(twice, ensure_ascii=False)} twice; expected each once: remove one of the two")
    return values


def one_as_list(value: object) -> object:
    """Returns one text as a list of it, and any other value as it is."""
    return [value] if isinstance(value, str) else value


def _token_ids(value: object) -> object:
    """Returns token ids as integers. YAML gives integers; JSON and the command line give digits."""
    if not isinstance(value, dict):
        return value
    ids = {int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key: bias for key, bias in value.items()}
    if len(ids) != len(value):
        raise ValueError("a token id stands twice")
    return ids


def _delimiter(value: str) -> str:
    """Returns the one character that is meant: a tab may be written as its name, or as its escape."""
    character = {"tab": "\t", "\\t": "\t"}.get(value, value)
    if len(character) != 1 or character in '"\r\n\0':
        raise ValueError("no single character, or one that CSV needs itself")
    return character


def _not_tiny(value: float) -> float:
    # Logits of some hundreds, divided by less than this, leave float32's exact range; the user means greedy.
    if 0.0 < value < 1e-4:
        raise ValueError("too small")
    return value


def json_values(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns the mapping. Raises ValueError for a number that JSON does not have."""
    json.dumps(value, allow_nan=False)
    return value


LIMIT = 2**31  # of whole numbers that may become int32

_TokenId = Annotated[int, Field(ge=0, lt=LIMIT)]
_Name = Annotated[str, Field(min_length=1), AfterValidator(_named)]
_Names = Annotated[list[_Name], AfterValidator(_distinct)]

Flag = Annotated[bool, Expected("true or false")]
Count = Annotated[int, Field(ge=1, lt=LIMIT), Expected("a whole number of at least 1")]
CountOrNull = Annotated[Annotated[int, Field(ge=1)] | None, Expected("a whole number of at least 1, or null")]
CountOrZero = Annotated[int, Field(ge=0, lt=LIMIT), Expected("a whole number of at least 0")]
BitsOrNull = Annotated[Literal[4, 8] | None, Expected("4, 8 or null")]
CountOrAuto = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, lt=LIMIT)], Expected("auto, or a whole number of at least 1")]

Name = Annotated[_Name, Expected("a string that is not empty")]
NameOrNull = Annotated[_Name | None, Expected("a string that is not empty, or null")]
TextOrNull = Annotated[str | None, Expected("a string, or null")]
Inputs = Annotated[
    _Name | Annotated[_Names, Field(min_length=1)],
    Expected("a file, glob or folder, a list of them, '-', or hf:owner/name; --data gives it too"),
]
Columns = Annotated[
    Literal["all", "none"] | _Names,
    Expected("all, none, or a list of distinct column names"),
]
ColumnOf = Annotated[dict[str, _Name], Expected("a mapping of sampling settings to column names")]

Temperature = Annotated[
    float,
    Field(ge=0, le=100),
    AfterValidator(_not_tiny),
    Expected("0 (greedy), or a number from 0.0001 to 100"),
]
Share = Annotated[float, Field(gt=0, le=1), Expected("a number above 0 and at most 1")]
ShareToHalf = Annotated[float, Field(gt=0, le=0.5), Expected("a number above 0 and at most 0.5")]
Chance = Annotated[float, Field(ge=0, le=1), Expected("a number from 0 to 1 (0 is off)")]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1), Expected("a number of at least 0 and below 1 (0 is off)")]
Ratio = Annotated[float, Field(ge=0.01, le=100), Expected("a number from 0.01 to 100 (1 is off)")]
Penalty = Annotated[float, Field(ge=-2, le=2), Expected("a number from -2 to 2 (0 is off)")]
AtLeastZero = Annotated[float, Field(ge=0, le=100), Expected("a number from 0 to 100 (0 is off)")]
AtLeastOne = Annotated[float, Field(ge=1, le=100), Expected("a number from 1 to 100")]
Seconds = Annotated[float, Field(ge=0), Expected("a number of seconds of at least 0")]
Gigabytes = Annotated[float, Field(ge=0), Expected("a number of GB of at least 0")]
GigabytesOrNull = Annotated[Annotated[float, Field(gt=0)] | None, Expected("a number of GB above 0, or null")]
FailOrShare = Annotated[
    Literal["fail"] | Annotated[float, Field(gt=0, lt=1)] | None, Expected("null, fail, or a share of groups above 0 and below 1")
]
SomeSeconds = Annotated[float, Field(gt=0), Expected("a number of seconds above 0")]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expected("a whole number from 0 to 2**63 - 1")]
TopK = Annotated[int, Field(ge=0, le=20), Expected("a whole number from 0 to 20")]

Strings = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(one_as_list, json_schema_input_type=str | list[str]),
    Expected("a string, or a list of strings, none empty"),
]
TokenIds = Annotated[list[_TokenId], Expected("a list of token ids")]
LogitBias = Annotated[
    dict[_TokenId, Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_token_ids, json_schema_input_type=dict[str, float]),
    Expected("a mapping of token ids (0 or above) to numbers from -100 to 100, each id once"),
]
Delimiter = Annotated[
    Annotated[str, AfterValidator(_delimiter)] | None,
    Expected("one character such as ';', or tab; or null, which finds it out from the first lines"),
]
JsonMapping = Annotated[dict[str, JsonValue], AfterValidator(json_values), Expected("a mapping of names to JSON values")]
FolderOrNull = Annotated[_Name | None, Expected("a folder, or null")]
