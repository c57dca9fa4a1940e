"""Tests the settings of tools and of reasoning: what they take, and the lines by which they are refused."""

from pathlib import Path

import pytest

from .written import LEAST, generation, lines, written

TOOL = '{name: weather, description: "", parameters: {type: object}}'


def test_a_bare_function_is_a_tool_and_null_is_none(tmp_path: Path) -> None:
    config = generation(written(tmp_path, LEAST), f"prompt.tools=[{TOOL}]", "prompt.tool_choice={name: weather}")
    function = {"name": "weather", "description": "", "parameters": {"type": "object"}}
    assert config.prompt.tools == [{"type": "function", "function": function}]
    wrapped = generation(written(tmp_path, LEAST), f"prompt.tools=[{{type: function, function: {TOOL}}}]")
    assert wrapped.prompt.tools == config.prompt.tools
    assert generation(written(tmp_path, LEAST), "prompt.tools=its.tools").prompt.tools == "its.tools"
    assert generation(written(tmp_path, LEAST)).prompt.tools is None


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("prompt.tools=[]", "prompt.tools: found []; expected a list of tools, each {type: function"),
        ("prompt.tools=[{}]", "prompt.tools: found a tool with a wrong function.name (field required); expected {name, description"),
        ("prompt.tools=[{type: web_search, name: a}]", "prompt.tools: found a tool of the type 'web_search'; expected function"),
        ("prompt.tools=[{name: a}, {name: a}]", "prompt.tools: found two tools of the name 'a'; expected a name of its own"),
        ("prompt.tool_choice=required", "prompt.tool_choice: expected auto, since there are no tools; give prompt.tools"),
        ("prompt.tool_choice=always", 'prompt.tool_choice: found "always"; expected none, auto, required, or a mapping with the name'),
        ("reasoning.budget=-1", "reasoning.budget: found -1; expected a whole number of tokens of at least 0, or null"),
        ("reasoning.message=Stop.", "reasoning.message: expected null, since reasoning.budget is null"),
        ("reasoning={marks: none, budget: 3}", "reasoning.budget: expected null, since reasoning.marks is none"),
        ("reasoning.marks=[<a>, <a>]", "reasoning.marks: expected two different strings, not '<a>' twice"),
        ("reasoning.marks=[<a>]", 'reasoning.marks: found ["<a>"]; expected auto, none, or a list of two strings'),
    ],
)
def test_refusals_name_the_setting_and_the_way_out(tmp_path: Path, override: str, line: str) -> None:
    (found,) = lines(tmp_path, LEAST, override)
    assert found.removeprefix("job.yaml: ").removeprefix(f"--set {override}: ").startswith(line), found


def test_a_tool_that_must_be_called_is_one_of_the_tools(tmp_path: Path) -> None:
    (found,) = lines(tmp_path, LEAST, f"prompt.tools=[{TOOL}]", "prompt.tool_choice={name: wether}")
    assert "prompt.tool_choice.name: found wether; expected one of prompt.tools: weather" in found


def test_a_scoring_job_has_no_tools(tmp_path: Path) -> None:
    score = LEAST.replace("job: generate", 'job: score\nscore: {completion: "x"}')
    (found,) = lines(tmp_path, score, f"prompt.tools=[{TOOL}]")
    assert "prompt.tools: expected nothing, since a scoring job reads no calls of tools" in found
