"""Tests the grammar of required calls: whole calls of the right tools fit it, and nothing else does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.answers.call_grammar import call_grammar, why_no_call_grammar
from mlx_bulk.runner.answers.tool_format import find_tool_format
from mlx_bulk.runner.answers.tools import ToolChoice
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.grammar.grammars import Grammars
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...checkpoints import EOS
from ...thinkers import WIDTH, thinker_tokenizer

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "properties": {"city": {"$ref": "#/$defs/place"}},
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {"place": {"type": "string"}},
                "x-guidance": {"lenient": True},
            },
        },
    },
    {"type": "function", "function": {"name": 'say "hi"', "parameters": {"type": "object", "additionalProperties": False}}},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return thinker_tokenizer(tmp_path_factory.mktemp("thinker") / "model")


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, WIDTH, frozenset([EOS]))


def written(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


ROME = written("weather", {"city": "Rom\u00e9"})
HI = written('say "hi"', {})


@pytest.mark.parametrize(
    ("text", "choice", "single", "fits"),
    [
        (ROME, ToolChoice("required"), False, True),
        (HI, ToolChoice("required"), False, True),
        (f"{ROME}\n{HI}", ToolChoice("required"), False, True),
        (f"{ROME}\n{HI}", ToolChoice("required"), True, False),
        (HI, ToolChoice("required", ("weather",)), False, False),
        (ROME, ToolChoice("required", ("weather",)), False, True),
        (written("weather", {"city": 3}), ToolChoice("required"), False, False),
        (written("weather", {}), ToolChoice("required"), False, False),
        (written("wether", {"city": "Rome"}), ToolChoice("required"), False, False),
        (ROME[: -len("</tool_call>")], ToolChoice("required"), False, False),
        ("Well.", ToolChoice("required"), False, False),
    ],
)
def test_what_fits(tokenizer: Tokenizer, grammars: Grammars, text: str, choice: ToolChoice, single: bool, fits: bool) -> None:
    form = find_tool_format("auto", tokenizer)
    assert form is not None
    spec = call_grammar(form, TOOLS, choice, single, lambda mark: tokenizer.encode_text(mark).ids.tolist())
    guide, mask = grammars.compiled(spec).start(), np.zeros((WIDTH + 31) // 32, np.int32)
    for token in tokenizer.encode_text(text).ids.tolist():
        guide.fill(mask)
        if not (int(mask[token // 32]) >> token % 32) & 1:
            break
        guide.push(token)
    else:
        assert bool(guide.complete) is fits
        return
    assert not fits


def test_parameters_that_cannot_be_enforced_are_told_as_those_of_tools(tokenizer: Tokenizer, grammars: Grammars) -> None:
    form = find_tool_format("auto", tokenizer)
    assert form is not None
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}}
    spec = call_grammar(form, [tool], ToolChoice("required"), False, lambda mark: tokenizer.encode_text(mark).ids.tolist())
    with pytest.raises(RowError) as raised:
        grammars.compiled(spec)
    said, cure = str(raised.value).split("; ")
    assert said == 'calls of these tools cannot be enforced: failed to compile JSON schema: Unimplemented keys: ["not"]'
    assert cure == "change their parameters, or set tool_choice: auto"


def test_formats_that_can_not_be_required(tmp_path: Path) -> None:
    silent = thinker_tokenizer(tmp_path / "model", template="{{ messages }}")
    assert "nobody knows how this model writes calls" in (why_no_call_grammar(find_tool_format("auto", silent)) or "")
    assert "read by qwen3_coder" in (why_no_call_grammar(find_tool_format("qwen3_coder", silent)) or "")
