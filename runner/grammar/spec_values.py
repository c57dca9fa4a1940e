"""From what a config or a row says of its grammar to a ``GrammarSpec``. Compiles nothing."""

import json
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...configs.errors import ConfigError
from ...configs.explain import shown
from ...configs.schema import GenerateConfig, JobConfig
from ...configs.structured import KINDS, StructuredConfig
from ..core.errors import RowError, first_line
from ..core.grammar_spec import GrammarSpec

EXPECTED = "a mapping with one of json_schema, regex, choice, grammar, or a JSON schema (either may be JSON text), or null"
RULES = ("whitespace", "unsupported")  # what a row may say beside its grammar


def configured_spec(config: StructuredConfig) -> GrammarSpec | None:
    """Returns the grammar of all rows, None where there is none or each row brings its own. Raises ConfigError."""
    kind = next((kind for kind in KINDS if getattr(config, kind) is not None), None)
    if kind is None:
        return None
    value = getattr(config, kind)
    if kind == "json_schema" and isinstance(value, str):
        value = _schema_in(Path(value))
    try:
        return spec_of(kind, value, config.whitespace, config.unsupported)
    except ValueError as error:
        raise ConfigError(f"structured.{kind}: {error}") from error


def grammar_identity(config: JobConfig) -> dict[str, str]:
    """Returns what a run's identity holds of its JSON schema, wherever that stands: a digest that knows the order of properties."""
    if not isinstance(config, GenerateConfig) or config.structured.json_schema is None:
        return {}
    spec = configured_spec(config.structured)
    return {} if spec is None else {"structured.json_schema": f"sha256 {sha256(spec.text.encode('utf-8', 'surrogatepass')).hexdigest()}"}


def row_spec(value: Any, config: StructuredConfig) -> GrammarSpec | None:
    """Returns the grammar that a row brings in the column ``structured.column``; None for null. Raises RowError."""
    try:
        return None if value is None else _spec_of_value(value, config)
    except ValueError as error:
        raise RowError("grammar", f"structured.column {config.column!r}: {error}") from error


def _spec_of_value(value: Any, config: StructuredConfig) -> GrammarSpec:
    found = _json_or_none(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise ValueError(f"found {shown(value)}; expected {EXPECTED}")
    named = {str(name): inner for name, inner in found.items() if inner is not None}  # a table's struct has all its fields
    kinds = [kind for kind in KINDS if kind in named]
    if named and not any(name in _keywords() or name.startswith(("$", "x-")) for name in named) and not named.keys() <= {*KINDS, *RULES}:
        raise ValueError(f"found {shown(found)}, which has no keyword of JSON Schema; expected {EXPECTED}")
    if not kinds or not named.keys() <= {*KINDS, *RULES}:
        return spec_of("json_schema", found, config.whitespace, config.unsupported)
    if len(kinds) > 1:
        raise ValueError(f"found {' and '.join(kinds)}; expected one of them")
    whitespace, unsupported = (named.get(rule, getattr(config, rule)) for rule in RULES)
    inner = named[kinds[0]]
    if kinds == ["json_schema"] and isinstance(inner, str):
        inner = _json_or_none(inner) or inner
    try:
        return spec_of(kinds[0], inner, whitespace, unsupported)
    except ValueError as error:
        raise ValueError(f"{kinds[0]}: {error}") from error


@cache
def _keywords() -> frozenset[str]:
    """The keywords of JSON Schema in its drafts. A mapping with none of them would allow any JSON, most likely by a slip of the pen."""
    from jsonschema.validators import Draft4Validator, Draft7Validator, Draft202012Validator

    drafts = (Draft4Validator, Draft7Validator)
    return frozenset(
        {"deprecated", "nullable"}.union(Draft202012Validator.VALIDATORS, *(each.META_SCHEMA["properties"] for each in drafts))
    )


def spec_of(kind: str, value: Any, whitespace: str = "bounded", unsupported: str = "error") -> GrammarSpec:
    """Returns the grammar that a setting, or a row's own, asks for. Raises ValueError for a value of the wrong kind."""
    if not (isinstance(whitespace, str) and whitespace):  # pyright: ignore[reportUnnecessaryIsInstance] - a row's own
        raise ValueError(f"found whitespace {shown(whitespace)}; expected bounded, flexible, compact, or a regular expression")
    if unsupported not in ("error", "relax"):
        raise ValueError(f"found unsupported {shown(unsupported)}; expected error or relax")
    match kind, value:
        case "json_schema", Mapping():
            return GrammarSpec("json_schema", _json_text(value), whitespace, unsupported == "relax")
        case "choice", [_, *_] if all(isinstance(text, str) for text in value):
            return GrammarSpec("choice", _json_text(list(value)))
        case ("regex" | "grammar") as kind, str() if value:
            return GrammarSpec(kind, value)
        case _:
            wanted = {"json_schema": "a JSON schema as a mapping", "choice": "a list of strings, at least one"}
            raise ValueError(f"found {shown(value)}; expected {wanted.get(kind, 'a string that is not empty')}")


def _schema_in(path: Path) -> Any:
    where = f"structured.json_schema: {path}"
    try:
        return _json(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{where} cannot be read ({first_line(error)}); expected a JSON schema as a mapping, or the path of one, "
            f"as seen from {Path.cwd()}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{where} holds no JSON ({error})") from error


def _json_or_none(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        return None


def _json(text: str) -> Any:
    """Parses JSON. Raises ValueError also for text that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _json_text(value: Any) -> str:
    """Writes JSON; the order of keys stays, as it is the order of a completion's properties."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except TypeError as error:  # a value that a table has and JSON has not, such as a date
        raise ValueError(f"found a value that JSON does not have ({error}); keep the schema as JSON text") from error
