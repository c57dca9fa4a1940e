"""Checks values against as much of JSON Schema as the shipped schema uses, as an editor would."""

from collections.abc import Iterator
from typing import Any

KEYWORDS = {
    *("$ref", "$defs", "$schema", "title", "description", "default", "type", "const", "enum", "anyOf", "allOf", "if", "then"),
    *("properties", "required", "additionalProperties", "items", "minItems", "minProperties", "minLength"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def breaches(value: Any, schema: Any, root: Any, place: str = "") -> list[str]:
    """Where ``value`` breaks ``schema``, as "place: rule"; ``root`` holds the definitions."""
    unknown = set(schema) - KEYWORDS
    assert not unknown, f"the schema uses {sorted(unknown)}, which this check does not know"
    if "$ref" in schema:
        return breaches(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, place)
    if "anyOf" in schema and all(breaches(value, each, root, place) for each in schema["anyOf"]):
        return [f"{place}: anyOf"]
    found = [f"{place}: {rule}" for rule in _broken(value, schema)]
    for each in schema.get("allOf", ()):
        if "if" not in each or not breaches(value, each["if"], root, place):
            found += breaches(value, each.get("then", each), root, place)
    if isinstance(value, dict):
        found += _keys(value, schema, root, place)
    if isinstance(value, list):
        found += [line for i, item in enumerate(value) for line in breaches(item, schema.get("items", {}), root, f"{place}[{i}]")]
    return found


def _broken(value: Any, schema: Any) -> Iterator[str]:
    """The rules on the value itself that it breaks."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = TYPES.get(schema.get("type"), object)
    if not isinstance(value, kind) or (isinstance(value, bool) and schema.get("type") in ("integer", "number")):
        yield f"type {schema['type']}"
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield "enum"
    sized = isinstance(value, str | list | dict)
    if sized and len(value) < max(schema.get(name, 0) for name in ("minLength", "minItems", "minProperties")):
        yield "length"
    low, above = schema.get("minimum", float("-inf")), schema.get("exclusiveMinimum", float("-inf"))
    high, below = schema.get("maximum", float("inf")), schema.get("exclusiveMaximum", float("inf"))
    if number and not (low <= value <= high and above < value < below):
        yield "bounds"


def _keys(value: dict[str, Any], schema: Any, root: Any, place: str) -> list[str]:
    """The rules on a mapping's keys that it breaks, and what is wrong below them."""
    found = [f"{place}.{name}: required" for name in schema.get("required", ()) if name not in value]
    rest = schema.get("additionalProperties", True)
    for name, inner in value.items():
        below = schema.get("properties", {}).get(name, rest)
        if below is False:
            found.append(f"{place}.{name}: unknown")
        elif below is not True:
            found += breaches(inner, below, root, f"{place}.{name}")
    return found
