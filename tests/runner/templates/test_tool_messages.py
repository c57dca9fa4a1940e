"""Tests that chats with tools and with earlier calls reach the chat template in the form that it takes."""

import json
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import RowError
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


def with_null_content(template: str) -> str:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": ARGUMENTS}}
    given = [{"role": "user", "content": "None?", "name": None}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages = read_messages({"chat": given}, "chat")
    return Tokenizer(demo()._hf, template).chat_text(messages, "", {})  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ';' }}{% endfor %}", "user: None?;assistant: ;"),
        ("{% for m in messages %}{{ m.content | trim }};{% endfor %}", "None?;;"),
        ("{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %};{% endfor %}", "None?;;"),
        ("{% for m in messages %}{% if m.content is none %}none{% endif %}{{ m.content }};{% endfor %}", "None?;;"),
        ("{% for m in messages %}{{ m.content + '' }}{% for c in m.tool_calls %}{{ c.function.arguments + '' }}{% endfor %}{% endfor %}",
         'None?{"city": "Köln", "days": 2}'),
    ],
)  # fmt: skip
def test_a_null_beside_calls_is_left_out_or_an_empty_text(template: str, text: str) -> None:
    """transformers leaves keys out that are null. A template that adds a content to a text would refuse the row then."""
    assert with_null_content(template) == text


def test_what_a_template_says_of_the_messages_as_given_is_told() -> None:
    with pytest.raises(RowError, match="refuses the messages: the first"):
        with_null_content("{{ raise_exception('the first' if messages[1].content is undefined else 'the second') }}")


def test_tools_are_a_variable_of_one_prompt() -> None:
    template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[0].content }}"
    assert written(template, {}, tools=TOOLS) == "[f]Hi"
    assert written(template, {}) == "Hi"
