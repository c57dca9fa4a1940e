"""Tests that chats with tools and with earlier calls reach the chat template in the form that it takes."""

import json
from typing import Any

from mlx_bulk.runner.templates.chat_messages import read_messages
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ..support.small_tokenizers import demo

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ARGUMENTS = {"city": "Köln", "days": 2}


def chat(arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]


def written(template: str, arguments: Any, **variables: Any) -> str:
    messages = read_messages({"chat": chat(arguments)}, "chat")
    return Tokenizer(demo()._hf, template).chat_text(messages, "", variables)  # pyright: ignore[reportPrivateUsage]


def test_arguments_that_are_json_text_become_mappings() -> None:
    as_mapping = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
    assert written(as_mapping, ARGUMENTS) == written(as_mapping, json.dumps(ARGUMENTS)) == "Köln"
    (call,) = read_messages({"chat": chat("no JSON")}, "chat")[1]["tool_calls"]
    assert call["function"]["arguments"] == "no JSON"


def test_a_template_that_takes_text_alone_gets_text() -> None:
    as_text = "{% for m in messages %}{% for c in m.tool_calls %}{{ 'args: ' + c.function.arguments }}{% endfor %}{% endfor %}"
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
        assert json.loads(written(as_text, arguments).removeprefix("args: ")) == ARGUMENTS


def test_tools_are_a_variable_of_one_prompt() -> None:
    template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[0].content }}"
    assert written(template, {}, tools=TOOLS) == "[f]Hi"
    assert written(template, {}) == "Hi"
