"""Tests what a config and a row may say of a grammar, and what becomes of anything else."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.structured import StructuredConfig
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.grammar_spec import GrammarSpec
from mlx_bulk.runner.grammar.spec_values import configured_spec, row_spec

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
OWN = StructuredConfig(column="own", whitespace="compact", unsupported="relax")


def test_a_config_gives_the_grammar_of_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    as_mapping = configured_spec(StructuredConfig(json_schema=SCHEMA, whitespace=" "))
    assert as_mapping == GrammarSpec("json_schema", json.dumps(SCHEMA), " ")
    assert configured_spec(StructuredConfig(json_schema=str(path), whitespace=" ")) == as_mapping
    path.write_text(json.dumps(SCHEMA), encoding="utf-8-sig")  # as some editors on Windows write
    assert configured_spec(StructuredConfig(json_schema=str(path), whitespace=" ")) == as_mapping
    assert configured_spec(StructuredConfig(regex="a+")) == GrammarSpec("regex", "a+")
    assert configured_spec(StructuredConfig(choice=["é", ""])) == GrammarSpec("choice", '["é", ""]')
    assert configured_spec(StructuredConfig()) is None
    assert configured_spec(OWN) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read .* as seen from /"),
        (b"{", "holds no JSON"),
        (b"[1]", "found \\[1\\]; expected a JSON schema"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_schema_file_that_is_none_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        configured_spec(StructuredConfig(json_schema=str(path)))


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        (None, None),
        ({"choice": ["a", "b"]}, GrammarSpec("choice", '["a", "b"]')),
        ('{"choice": ["a"]}', GrammarSpec("choice", '["a"]')),
        ({"regex": "a", "choice": None, "json_schema": None}, GrammarSpec("regex", "a")),
        ({"grammar": 'start: "a"'}, GrammarSpec("grammar", 'start: "a"')),
        (SCHEMA, GrammarSpec("json_schema", json.dumps(SCHEMA), "compact", relaxed=True)),
        (json.dumps(SCHEMA), GrammarSpec("json_schema", json.dumps(SCHEMA), "compact", relaxed=True)),
        ({"json_schema": json.dumps(SCHEMA)}, GrammarSpec("json_schema", json.dumps(SCHEMA), "compact", relaxed=True)),
        ({"json_schema": {}, "whitespace": "bounded", "unsupported": "error"}, GrammarSpec("json_schema", "{}")),
        ({}, GrammarSpec("json_schema", "{}", "compact", relaxed=True)),
        ({"title": "Any"}, GrammarSpec("json_schema", '{"title": "Any"}', "compact", relaxed=True)),
        ({"$ref": "#"}, GrammarSpec("json_schema", '{"$ref": "#"}', "compact", relaxed=True)),
        ({"type": "object", "regex": "x"}, GrammarSpec("json_schema", '{"type": "object", "regex": "x"}', "compact", relaxed=True)),
    ],
)
def test_a_row_brings_its_own(value: Any, spec: GrammarSpec | None) -> None:
    assert row_spec(value, OWN) == spec


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("yes", 'found "yes"; expected a mapping with one of json_schema, regex, choice, grammar, or a JSON schema'),
        (["a"], "expected a mapping"),
        (3, "found 3; expected"),
        ({"choice": []}, "choice: found []; expected a list of strings, at least one"),
        ({"choice": ["a", 1]}, 'choice: found ["a", 1]; expected a list of strings'),
        ({"regex": ""}, 'regex: found ""; expected a string that is not empty'),
        ({"regex": "a", "choice": ["a"]}, "found regex and choice; expected one of them"),
        ({"json_schema": "{"}, 'json_schema: found "{"; expected a JSON schema as a mapping'),
        ({"json_schema": {}, "whitespace": 3}, "found whitespace 3; expected bounded, flexible, compact"),
        ({"json_schema": {}, "unsupported": "warn"}, 'found unsupported "warn"; expected error or relax'),
        (
            {"choices": ["a"]},
            'found {"choices": ["a"]}, which has no keyword of JSON Schema; expected a mapping with one of json_schema, regex',
        ),
        ({"choice": ["a"], "whitspace": "compact"}, "which has no keyword of JSON Schema; expected a mapping with one of"),
        ('{"regexp": "a"}', "which has no keyword of JSON Schema"),
        ({"const": float("nan")}, "Out of range float values"),
        ({"const": datetime.date(2026, 1, 1)}, "keep the schema as JSON text"),
        ("[" * 100_000, "expected a mapping"),
    ],
)
def test_anything_else_is_an_error_of_the_row(value: Any, words: str) -> None:
    with pytest.raises(RowError) as caught:
        row_spec(value, OWN)
    assert caught.value.stage == "grammar"
    assert words in str(caught.value)
    assert str(caught.value).startswith("structured.column 'own': ")
