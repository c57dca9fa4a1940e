"""Explains errors in a config: one line a setting, with the value found, the value expected, and the fix.

It turns pydantic's errors into such lines. Knows the models of configs, and no files.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from .fields import LIMIT, Expected, Section, nearest
from .jobs import JOBS

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A wrong setting: its dotted key, and the rest of the line."""

    key: str
    text: str


def shown(value: object) -> str:
    """Returns a value for an error message: as JSON, so that "1" and 1 differ, cut to about 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def settings(model: type[Section], prefix: str = "") -> list[str]:
    """Lists the dotted keys of all settings in a config of the kind ``model``, in the schema's order."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        section = section_of(field)
        keys += settings(section, f"{prefix}{name}.") if section else [prefix + name]
    return keys


def section_of(field: FieldInfo) -> type[Section] | None:
    """Returns the model of a field that holds a section, or None for a plain setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _section_within(field: FieldInfo) -> type[Section] | None:
    """Returns the section that a field's value can be: alone, or as an alternative to other values."""
    arguments = () if get_origin(field.annotation) is list else get_args(field.annotation)
    kinds = [kind for kind in arguments if isinstance(kind, type) and issubclass(kind, Section)]
    return section_of(field) or (kinds[0] if kinds else None)


def _section_listed(field: FieldInfo) -> type[Section] | None:
    """Returns the section of which a field holds a list, or None."""
    kinds = get_args(field.annotation) if get_origin(field.annotation) is list else ()
    return kinds[0] if kinds and isinstance(kinds[0], type) and issubclass(kinds[0], Section) else None


def holds_keys(field: FieldInfo) -> bool:
    """Returns True for a field that can hold a mapping: names to values, or a section or null."""
    kinds = _types_within(field.annotation)
    return any(get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, Section)) for kind in kinds)


def holds_text(field: FieldInfo) -> bool:
    """Returns True for a field that can hold a text, and no mapping."""
    return not holds_keys(field) and str in _types_within(field.annotation)


def holds_list(field: FieldInfo) -> bool:
    """Returns True for a field that can hold a list."""
    return any((get_origin(kind) or kind) in (list, tuple) for kind in _types_within(field.annotation))


def _types_within(kind: Any) -> list[Any]:
    """Returns a type and its alternatives, without what they are annotated with. A list's items are not among them."""
    if get_origin(kind) is Annotated:
        return _types_within(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [inner for part in get_args(kind) for inner in _types_within(part)]
    return [kind]


def unknown(key: str, valid: Sequence[str], root: type[Section]) -> SettingProblem:
    """Returns the problem of a key that does not exist. It suggests the nearest of the ``valid`` keys beside it, or lists them all."""
    prefix, _, name = key.rpartition(".")
    near = nearest(name, valid)
    elsewhere = [path for path in dict.fromkeys([*root.model_fields, *settings(root)]) if path.rpartition(".")[2] == name]
    if near:
        fix = f"did you mean {prefix}.{near}?" if prefix else f"did you mean {near}?"
    elif elsewhere:
        fix = f"did you mean {' or '.join(elsewhere)}?"
    elif others := [job for job, model in JOBS.items() if model is not root and key in _keys(model)]:
        fix = f"it belongs to job: {' or '.join(others)}; remove it, or expected one of {', '.join(valid)}"
    else:
        fix = f"expected one of {', '.join(valid)}"
    return SettingProblem(key, f"no such key; {fix}")


def _keys(model: type[Section]) -> set[str]:
    """Returns the dotted keys of a config's settings, and its sections."""
    return {*settings(model), *model.model_fields}


def problems(error: ValidationError, values: object, root: type[Section]) -> list[SettingProblem]:
    """Returns one problem a setting, in the order of the schema's checks. ``values``: the config that ``root`` validated."""
    by_setting: dict[str, tuple[tuple[bool, int, bool], SettingProblem]] = {}
    for detail in error.errors(include_url=False):
        setting, problem = _problem(detail, values, root)
        # A union reports each of its branches. One that says itself what is wrong, or reaches deepest, names the offending element. Of a
        # mapping a wrong key goes before its value. One that is of the right kind, and passes a bound, comes before one that is not.
        rank = (detail["type"] == "contradiction" or _is_of_key(detail["loc"]), len(problem.key), bool(passed_bound(detail)))
        if setting not in by_setting or rank > by_setting[setting][0]:
            by_setting[setting] = rank, problem
    return [problem for _, problem in by_setting.values()]


def _problem(detail: ErrorDetails, values: object, root: type[Section]) -> tuple[str, SettingProblem]:
    model, names, field, rest = _walk(detail["loc"], root)
    key = ".".join(names)
    match detail["type"]:
        case "contradiction":
            context = detail.get("ctx", {})
            key = ".".join(part for part in (key, context["key"]) if part)
            return key, SettingProblem(key, context["text"])
        case "missing":
            return key, SettingProblem(key, f"missing; expected {_expected(field, root)}")
        case "extra_forbidden" | "invalid_key" if model is not None:
            key = ".".join([*names, str(rest[0])])
            return key, unknown(key, list(model.model_fields), root)
        case _:
            if _is_of_key(rest):
                element, mapping = _descend(names, rest[:-2], values)
                written = next((own for own in mapping if rest[-2] in (own, str(own))), rest[-2]) if isinstance(mapping, dict) else rest[-2]
                return key, SettingProblem(element, f"found the key {shown(written)}; expected {_expected(field, root)}")
            element, value = _descend(names, rest, values)
            expected = f"{_expected(field, root)}{passed_bound(detail)}"
            return key, SettingProblem(element, f"found {shown(value)}; expected {expected}{_fix(field, value)}")


def _is_of_key(loc: tuple[int | str, ...]) -> bool:
    """Returns True for the location of a fault that lies in a mapping's key, not in its value, as pydantic marks it."""
    return len(loc) > 1 and loc[-1] == "[key]"


def _walk(
    loc: tuple[int | str, ...], root: type[Section]
) -> tuple[type[Section] | None, list[str], FieldInfo | None, tuple[int | str, ...]]:
    """Splits pydantic's location: the section in which it ends (None inside a setting), names up to there, their field, and the rest."""
    model: type[Section] | None = root
    names: list[str] = []
    field: FieldInfo | None = None
    for depth, step in enumerate(loc):
        if isinstance(step, int) and field is not None and (listed := _section_listed(field)):
            names[-1] += f"[{step}]"
            model = listed
            continue
        if model is None or step not in model.model_fields:
            return model, names, field, loc[depth:]
        field = model.model_fields[str(step)]
        names.append(str(step))
        model = _section_within(field)
    return model, names, field, ()


def _descend(names: list[str], rest: tuple[int | str, ...], values: object) -> tuple[str, object]:
    """Returns the key and the value at the end of a location. Skips steps that name a branch of a union."""
    key, value = ".".join(names), values
    for name in names:
        setting, _, index = name.removesuffix("]").partition("[")
        value = value.get(setting) if isinstance(value, dict) else None
        if index:
            value = value[int(index)] if isinstance(value, list) else None
    for step in rest:
        if isinstance(value, dict) and step in value:
            key, value = f"{key}.{step}", value[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            key, value = f"{key}[{step}]", value[step]
    return key, value


def _expected(field: FieldInfo | None, root: type[Section]) -> str:
    if field is None:
        return f"a mapping with {', '.join(root.model_fields)}"
    if section := section_of(field):
        return f"a mapping with {', '.join(section.model_fields)}"
    # The last mark is the setting's own; those before it belong to its kind of value.
    if words := [mark.words for mark in field.metadata if isinstance(mark, Expected)]:
        return words[-1]
    return _either(_choices(field))


def _choices(field: FieldInfo | None) -> list[str]:
    kind = field.annotation if field else None
    return [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []


def _either(choices: list[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]]) if len(choices) > 1 else choices[0]


def _fix(field: FieldInfo | None, value: object) -> str:
    if field and value is None and not field.is_required() and section_of(field) is None:
        return f"; remove the key for its default, {shown(field.default)}"
    if isinstance(value, str) and (near := nearest(value, _choices(field))):
        return f"; did you mean {near}?"
    return ""


def passed_bound(detail: ErrorDetails) -> str:
    """Returns the bound of whole numbers that a value passes, to follow what is expected; "" for another error."""
    bound = detail.get("ctx", {}).get("lt")
    return f" and below {bound}" if detail["type"] == "less_than" and bound == LIMIT else ""
