"""Tests that a finished text is read into reasoning, content and calls, and that nothing that cannot be read is lost or made up."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.runner.answers.answer import Answer, AnswerReader
from mlx_bulk.runner.answers.completion_text import CompletionText
from mlx_bulk.runner.answers.reasoning_marks import find_reasoning_marks
from mlx_bulk.runner.answers.sections import literal
from mlx_bulk.runner.answers.tool_format import find_tool_format
from mlx_bulk.runner.core.requests import Reading, Sampling
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...thinkers import TEMPLATE, WEATHER, completed, thinker_tokenizer

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
KOELN = ("weather", {"city": "Köln"})


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "special"])
def tokenizer(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Tokenizer:
    """With marks that decoding keeps, and with marks that it drops."""
    return thinker_tokenizer(tmp_path_factory.mktemp("thinker") / "model", special=request.param)


def read(tokenizer: Tokenizer, text: str, finish: str = "stop", stop: str | None = None, **reading: Any) -> Answer:
    marks = find_reasoning_marks("auto", tokenizer)
    assert marks is not None
    reader = AnswerReader(literal("reasoning", marks.begins, marks.ends), find_tool_format("auto", tokenizer))
    asked = replace(Reading(reasoning=True, calls=True, tools=(WEATHER,)), **reading)
    outcome = completed(tokenizer, text, "length" if stop else finish)
    shown = tokenizer.decode(outcome.ids)
    length = shown.index(stop) if stop else len(shown)
    return reader.read(CompletionText.of(tokenizer, Sampling(), outcome, length), asked)


def calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def test_reasoning_that_the_prompt_opens_closes_or_leaves_to_the_model(tokenizer: Tokenizer) -> None:
    opened = read(tokenizer, "Let me see.\n</think>\n\n4", turn="<|im_start|>assistant\n<think>\n")
    assert (opened.reasoning, opened.content, opened.error) == ("Let me see.", "4", None)
    assert opened.reasoning_tokens == len(tokenizer.encode_text("Let me see.\n").ids)
    closed = read(tokenizer, "4", turn="<think>\n\n</think>\n\n")
    assert (closed.reasoning, closed.reasoning_tokens, closed.content) == (None, 0, "4")
    left = read(tokenizer, "<think>\nLet me see.\n</think>\n\n4")
    assert (left.reasoning, left.content, left.reasoning_tokens) == ("Let me see.", "4", len(tokenizer.encode_text("\nLet me see.\n").ids))
    assert read(tokenizer, "4").reasoning is None
    assert read(tokenizer, "So.</think>4").reasoning == "So."


def test_a_text_that_is_cut_off_in_reasoning_has_no_content(tokenizer: Tokenizer) -> None:
    answer = read(tokenizer, "Let me", "length", turn="<think>\n")
    assert (answer.reasoning, answer.content, answer.calls, answer.error) == ("Let me", None, [], None)


def test_content_is_the_completion_where_there_is_nothing_else(tokenizer: Tokenizer) -> None:
    for text in ("", "\n4\n", "  4 "):
        assert read(tokenizer, text).content == text
    assert read(tokenizer, "4 STOP and more", stop=" STOP").content == "4"


def test_a_stop_string_behind_a_mark_leaves_the_mark(tokenizer: Tokenizer) -> None:
    answer = read(tokenizer, "Hm.</think>STOP", stop="STOP", turn="<think>")
    assert (answer.reasoning, answer.content) == ("Hm.", None)


def test_calls_are_read_and_taken_out_of_the_content(tokenizer: Tokenizer) -> None:
    answer = read(tokenizer, f"<think>\nHm.\n</think>\n\nI ask.\n{CALL}\n{CALL}")
    assert calls(answer) == [KOELN, KOELN]
    assert (answer.reasoning, answer.content, answer.error) == ("Hm.", "I ask.", None)
    assert read(tokenizer, CALL).content is None


def test_a_call_cut_off_anywhere_is_no_call_and_stays_in_the_content(tokenizer: Tokenizer) -> None:
    text = f"I ask.\n{CALL}\n{CALL}"
    for at in range(1, len(text)):
        for finish in ("length", "stop"):
            answer = read(tokenizer, text[:at], finish)
            whole = text[:at].count("</tool_call>")
            assert calls(answer) == [KOELN] * whole
            if text[:at].count("<tool_call>") > whole:
                assert answer.error == "cut off"
                assert (answer.content or "").startswith("I ask.")


def test_a_call_in_reasoning_is_no_call_unless_it_ends_the_reasoning(tokenizer: Tokenizer) -> None:
    inside = read(tokenizer, f"<think>{CALL}</think>4")
    assert (inside.calls, inside.content) == ([], "4")
    assert inside.reasoning is not None
    assert "weather" in inside.reasoning
    ending = read(tokenizer, f"<think>Hm.{CALL}")
    assert (calls(ending), ending.reasoning, ending.content) == ([KOELN], "Hm.", None)


@pytest.mark.parametrize(
    ("inner", "error"),
    [
        ('{"name": "weather"', "not a call: JSONDecodeError"),
        ('["weather"]', "not a call: ValueError: a mapping with a name is expected"),
        ('{"name": 3}', "not a call: ValueError: a mapping with a name"),
        ('{"name": "weather", "arguments": [1]}', "not a call: ValueError: arguments that are a mapping"),
        ('{"name": "weather", "arguments": {"x": NaN}}', "not a call: ValueError"),
        ("[" * 5000, "not a call: "),
    ],
)
def test_what_is_no_call_stays_as_text_with_the_reason(tokenizer: Tokenizer, inner: str, error: str) -> None:
    answer = read(tokenizer, f"A<tool_call>{inner}</tool_call>")
    assert answer.calls == []
    assert (answer.error or "").startswith(error)
    assert inner in (answer.content or "")


def test_half_a_character_is_written_as_an_escape(tokenizer: Tokenizer) -> None:
    (call,) = read(tokenizer, r'<tool_call>{"name": "weather", "arguments": {"city": "\ud83d"}}</tool_call>').calls
    assert call.arguments == r'{"city": "\ud83d"}'


def test_tools_that_the_row_has_not_or_may_not_call(tokenizer: Tokenizer) -> None:
    other = CALL.replace("weather", "wether")
    assert (len(read(tokenizer, other).calls), read(tokenizer, other).error) == (1, "unknown tool")
    assert read(tokenizer, CALL, names=("other",)).error == "unknown tool"
    assert read(tokenizer, other, tools=()).error is None
    unread = read(tokenizer, CALL, calls=False)
    assert (unread.calls, "weather" in (unread.content or "")) == ([], True)


def test_one_call_is_kept_where_only_one_may_be(tokenizer: Tokenizer) -> None:
    answer = read(tokenizer, CALL + CALL, single=True)
    assert (calls(answer), answer.error) == ([KOELN], "1 more calls, since parallel_tool_calls is false")


def test_marks_must_stand_in_the_chat_template(tmp_path: Path) -> None:
    silent = thinker_tokenizer(tmp_path / "model", template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert find_reasoning_marks("auto", silent) is None
    assert find_tool_format("auto", silent) is None
    given = find_reasoning_marks(["<a>", "</a>"], silent)
    assert given is not None
    assert (given.begins, given.ends, given.after) == ("<a>", "</a>", "")


def test_the_newlines_that_a_template_writes_behind_reasoning(tokenizer: Tokenizer) -> None:
    marks = find_reasoning_marks("auto", tokenizer)
    assert marks is not None
    assert (marks.begins, marks.ends, marks.after) == ("<think>", "</think>", "\n\n")


def test_a_parser_that_nobody_has(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"tools\.parser: found json_tool; did you mean json_tools\? expected one of auto, none"):
        find_tool_format("json_tool", tokenizer)
    assert find_tool_format("none", tokenizer) is None


def test_formats_are_found_by_template_by_checkpoint_and_by_table(caplog: pytest.LogCaptureFixture) -> None:
    def found(template: str, setting: str = "auto", **checkpoint: Any) -> str | None:
        hf = SimpleNamespace(init_kwargs={}, get_vocab=dict, **checkpoint)
        tokenizer: Any = SimpleNamespace(hf=hf, chat_template=None, template_text=template)
        form = find_tool_format(setting, tokenizer)
        return form.name if form is not None else None

    own = {"start_anchor": "a", "fields": {"tool_calls": {"open": "<c>", "close": "</c>", "content": "json", "repeats": True}}}
    assert found(TEMPLATE) == "json_tools"
    assert found(TEMPLATE, response_template=own) == "response_template"
    assert found('<|start_header_id|> "parameters": tool_call.name') == "llama3_json"
    assert found("<|channel|>commentary functions. <|call|>") == "gpt_oss"
    assert found("nothing") is None
    broken = {"fields": {"tool_calls": {"open": "<c>", "new": 1}}}
    with pytest.raises(ConfigError, match="the response template of the model cannot be read"):
        found(TEMPLATE, "response_template", response_template=broken)
    assert found(TEMPLATE, response_template=broken) == "json_tools", "a run that needs no calls goes on"
    assert "cannot be read" in caplog.messages[-1]
