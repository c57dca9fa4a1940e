"""Tests that a row's tools are read from a list, from JSON text and from a table's structs, and what is refused."""

import json
from typing import Any

import pytest
from mlx_bulk.configs.answers import NamedTool
from mlx_bulk.runner.answers.tools import ToolChoice, read_tools, tool_names
from mlx_bulk.runner.core.errors import RowError

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_tools_come_as_a_list_as_text_or_not_at_all() -> None:
    assert read_tools({"t": [TOOL]}, "t") == read_tools({"t": json.dumps([TOOL])}, "t") == [TOOL]
    assert read_tools({"t": {"in": [TOOL["function"]]}}, "t.in") == [TOOL]
    assert read_tools({"t": None}, "t") is read_tools({"t": []}, "t") is read_tools({}, "t") is None
    assert tool_names([TOOL]) == ["f"]


def test_keys_that_a_table_fills_with_null_are_dropped() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "enum": None}, "b": None}, "required": ["a"]}
    (tool,) = read_tools({"t": [{"type": "function", "function": {"name": "f", "parameters": parameters}}]}, "t") or []
    assert tool["function"]["parameters"] == {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("{", "the column 't' is text, but not the JSON of a list of tools"),
        (3, "the column 't' holds int; expected a list of tools"),
        ([TOOL, TOOL], "the column 't': found two tools of the name 'f'"),
        ([3], "the column 't': found a tool that is no mapping"),
    ],
)
def test_a_row_without_proper_tools_is_refused(found: Any, words: str) -> None:
    with pytest.raises(RowError, match=r"prompt\.tools: ") as caught:
        read_tools({"t": found}, "t")
    assert words in str(caught.value)


def test_choices_of_the_config() -> None:
    assert ToolChoice.of("auto") == ToolChoice("auto")
    assert ToolChoice.of(NamedTool(name="f")) == ToolChoice("required", ("f",))
