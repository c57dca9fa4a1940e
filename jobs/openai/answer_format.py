"""The grammar that a request wants its answer held to, in whichever of several fields it stands."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from ...configs.explain import shown
from .bodies import GrammarFields
from .refusal import RequestRefused

Kind = Literal["json_schema", "regex", "choice", "grammar"]

_KINDS: dict[str, Kind] = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar"}
_OBJECT = {"type": "object"}


@dataclass(slots=True, frozen=True)
class AnswerFormat:
    """A grammar for the answer, and the field that asks for it. kind: None where the request says that any text will do."""

    param: str
    kind: Kind | None
    value: Any = None


def answer_format(body: GrammarFields) -> AnswerFormat | None:
    """Returns what a chat or a completion asks for, None where it says nothing. Raises RequestRefused for two of them at once."""
    found = [] if body.response_format is None else [of_format(body.response_format, "response_format", flat=False)]
    if body.structured_outputs is not None:
        found.append(_structured(body.structured_outputs))
    for name, kind in _KINDS.items():
        if (value := getattr(body, f"guided_{name}", None)) is not None:
            found.append(_named(f"guided_{name}", kind, value))
    held = [one for one in found if one.kind is not None]
    if len(held) > 1:
        names = " and ".join(one.param for one in held)
        raise RequestRefused(held[1].param, "invalid_value", f"found {names}; expected one of them")
    return (held or found or [None])[0]


def of_format(value: dict[str, Any], param: str, *, flat: bool) -> AnswerFormat:
    """Returns what ``response_format`` of a chat says, or (``flat``) ``text.format`` of a response. Raises RequestRefused."""
    match value.get("type"):
        case "text":
            return AnswerFormat(param, None)
        case "json_object":
            return AnswerFormat(param, "json_schema", _OBJECT)
        case "json_schema":
            place, inner = (param, value) if flat else (f"{param}.json_schema", value.get("json_schema"))
            schema = inner.get("schema") if isinstance(inner, dict) else None
            if not isinstance(schema, dict):
                raise RequestRefused(f"{place}.schema", "missing_required_parameter", f"found {shown(schema)}; expected a JSON schema")
            return AnswerFormat(param, "json_schema", schema)
        case other:
            expected = "text, json_object or json_schema"
            raise RequestRefused(f"{param}.type", "unsupported_value", f"found {shown(other)}; expected {expected}")


def _structured(value: dict[str, Any]) -> AnswerFormat:
    """Returns what vLLM's ``structured_outputs`` says."""
    given = {name: inner for name, inner in value.items() if inner not in (None, False)}
    if len(given) != 1:
        raise RequestRefused("structured_outputs", "invalid_value", f"found {shown(value)}; expected exactly one of {', '.join(_KINDS)}")
    ((name, inner),) = given.items()
    if name == "json_object":
        return AnswerFormat("structured_outputs", "json_schema", _OBJECT)
    if name not in _KINDS:
        raise RequestRefused(f"structured_outputs.{name}", "unsupported_parameter", f"expected one of {', '.join(_KINDS)}, json_object")
    return _named(f"structured_outputs.{name}", _KINDS[name], inner)


def _named(param: str, kind: Kind, value: Any) -> AnswerFormat:
    """Returns a grammar by its kind. A schema may be JSON text."""
    if kind == "json_schema" and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestRefused(param, "invalid_value", f"found a text that is no JSON schema: {error}") from None
    return AnswerFormat(param, kind, value)
