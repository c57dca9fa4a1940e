"""Short ways to write settings: a section as the one value that is meant (``model: demo``), and options such as ``--model``."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from .config_file import Values
from .explain import section_of
from .fields import Section

# A section that may be written as the value of its one key: model: demo, data: rows.jsonl, output: outputs/mine.
ONE_KEY = {"model": "path", "data": "path", "output": "path"}

Options = Mapping[str, str | int]


def spell_out(values: Values) -> None:
    """Replaces a section that is written as one value by its mapping, in place; also in the base of a sweep."""
    for section, key in ONE_KEY.items():
        value = values.get(section)
        if isinstance(value, str) or (section == "data" and isinstance(value, list)):
            values[section] = {key: value}
    if isinstance(base := values.get("base"), dict):
        spell_out(base)


def option_overrides(options: Options, sweeps: bool) -> list[tuple[str, str]]:
    """Returns the values of options (``data.path`` of ``--data``, ``data.limit`` of ``--limit``) as overrides, each with the option."""
    return [(f"{_in_base(key) if sweeps else ''}{key}={json.dumps(value)}", f"--{_option(key)} {value}") for key, value in options.items()]


def _in_base(key: str) -> str:
    """Returns what stands before a key of a sweep's base; nothing for the sweep's own keys."""
    return "" if key.startswith(("output.", "cluster.")) else "base."


def _option(key: str) -> str:
    section, _, name = key.partition(".")
    return section if name == ONE_KEY.get(section) else name


def allow_short_forms(schema: dict[str, JsonValue], model: type[Section]) -> None:
    """Adds the short forms of sections to the JSON schema of ``model``, in place."""
    properties = schema["properties"]
    assert isinstance(properties, dict), "a schema of a model has properties"
    for section in ONE_KEY:
        field = model.model_fields.get(section)
        if field is None or section_of(field) is None:
            continue
        mapping: JsonValue = {"type": "object"}
        kinds: list[JsonValue] = [mapping, {"type": "string"}]
        if section == "data":
            kinds.append({"type": "array", "items": {"type": "string"}})
        # An editor then tells a wrong key in a mapping by its name.
        whole: JsonValue = {"if": mapping, "then": properties[section]}
        properties[section] = {"description": field.description, "anyOf": kinds, "allOf": [whole]}
