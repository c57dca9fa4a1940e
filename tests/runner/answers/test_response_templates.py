"""Tests calls read by transformers' response templates: whole and cut off anywhere, by templates of checkpoints and of the table."""

import json
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import mlx_lm.tool_parsers as tool_parsers
import numpy as np
import pytest
from mlx_bulk.runner.answers.answer import Answer, AnswerReader
from mlx_bulk.runner.answers.completion_text import CompletionText
from mlx_bulk.runner.answers.response_templates import TABLE
from mlx_bulk.runner.answers.tool_format import find_tool_format
from mlx_bulk.runner.core.requests import Reading

from ...thinkers import WEATHER

ARGUMENTS = {"city": "Köln {1}", "days": 2}
FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
# As Qwen 3.5 and GLM write calls. transformers' own reader takes such a call for whole once it is cut off behind an argument.
XML: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
            "close_pattern": r"</function>\s*</tool_call>|$",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
            "transform": FUNCTION,
        },
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    },
}
XML_CALL = "\n".join(
    [
        *("<tool_call>", "<function=weather>", "<parameter=city>", "Köln {1}", "</parameter>"),
        *("<parameter=days>", "2", "</parameter>", "</function>", "</tool_call>"),
    ]
)
TYPED = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOL = {**WEATHER, "function": {**WEATHER["function"], "parameters": TYPED}}
JSON = json.dumps(ARGUMENTS, ensure_ascii=False)
LLAMA_CALL = f'{{"name": "weather", "parameters": {JSON}}}'
GPT_OSS_CALL = f"<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{JSON}"
RECIPIENT_LAST = f"<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON}"


def reader(own: dict[str, Any] | None, name: str = "auto") -> AnswerReader:
    hf = SimpleNamespace(init_kwargs={}, get_vocab=dict, response_template=own)
    tokenizer: Any = SimpleNamespace(hf=hf, chat_template=None, template_text="x")
    return AnswerReader(None, find_tool_format(name, tokenizer))


def read(by: AnswerReader, text: str, eos: str | None, turn: str = "") -> Answer:
    whole = text + (eos or "")
    starts = np.append(np.arange(len(text)), [len(text)] if eos else []).astype(np.int32)
    completion = CompletionText(whole, starts, [False] * len(text) + [True] * bool(eos), len(text), eos is not None)
    return by.read(completion, Reading(turn=turn, reasoning=True, calls=True, tools=(TOOL,)))


def calls(answer: Answer) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


CASES = [
    (reader(XML), "I ask.\n" + XML_CALL, "<|im_end|>", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    (reader(None, "llama3_json"), LLAMA_CALL, "<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    (reader(None, "llama3_json"), "<|python_tag|>" + LLAMA_CALL, "<|eom_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    (reader(None, "gpt_oss"), "<|channel|>analysis<|message|>Hm.<|end|>" + GPT_OSS_CALL, "<|call|>", "<|start|>assistant"),
    (reader(None, "gpt_oss"), RECIPIENT_LAST, "<|call|>", "<|start|>assistant"),
]


@pytest.mark.parametrize(("by", "text", "eos", "turn"), CASES)
def test_whole_calls(by: AnswerReader, text: str, eos: str, turn: str) -> None:
    answer = read(by, text, eos, turn)
    assert calls(answer) == [("weather", ARGUMENTS)]
    assert answer.error is None
    assert answer.content == ("I ask." if "I ask" in text else None)
    assert answer.reasoning == ("Hm." if "Hm." in text else None)


@pytest.mark.parametrize(("by", "text", "eos", "turn"), CASES)
def test_calls_cut_off_anywhere(by: AnswerReader, text: str, eos: str, turn: str) -> None:
    for at in range(1, len(text)):
        for end in (None, eos):
            answer = read(by, text[:at], end, turn)
            assert answer.calls == [], text[:at]


def test_reasoning_by_the_templates_own_marks() -> None:
    answer = read(reader(XML), "Hm.\n</think>\n\nNo call.", "<|im_end|>", "<|im_start|>assistant\n<think>\n")
    assert (answer.reasoning, answer.content, answer.error) == ("Hm.", "No call.", None)


def test_the_final_channel_is_the_content() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It rains."
    answer = read(reader(None, "gpt_oss"), text, "<|return|>", "<|start|>assistant")
    assert (answer.reasoning, answer.content, answer.calls) == ("Hm.", "It rains.", [])


def test_json_in_the_middle_of_a_text_is_no_call_of_llama() -> None:
    answer = read(reader(None, "llama3_json"), "Write " + LLAMA_CALL, "<|eot_id|>", "<|end_header_id|>\n\n")
    assert (answer.calls, answer.content) == ([], "Write " + LLAMA_CALL)


def test_the_table_has_a_template_for_each_of_its_names() -> None:
    assert [find_tool_format(name, reader_tokenizer()) is not None for name in TABLE] == [True] * len(TABLE)


def reader_tokenizer() -> Any:
    return SimpleNamespace(hf=SimpleNamespace(init_kwargs={}, get_vocab=dict), chat_template=None, template_text="")


GARBAGE = [
    *("", "x", "{", "[1]", "null", '{"name": 1}', "<function=", "call:f{a:", "[f(x=", "name[ARGS]{"),
    *("\n\n", "<invoke name=", "\u2028\x00", "[" * 500),
]


@pytest.mark.parametrize("name", [*TABLE, *sorted(module.name for module in iter_modules(tool_parsers.__path__))])
def test_no_parser_ends_a_run(name: str) -> None:
    by = reader(None, name)
    assert by.format is not None
    begins, ends = by.format.begins or LLAMA_CALL[:20], by.format.ends or ""
    for garbage in GARBAGE:
        answer = read(by, f"a{begins}{garbage}{ends}", "<eos>")
        assert answer.calls or answer.error or answer.content
