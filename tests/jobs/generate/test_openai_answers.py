"""Tests tools, reasoning and grammars of Batch lines, from the request to the answer that the openai package reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from ...thinkers import write_thinker
from ..support.batch_files import Answered, answered, chat, completion, response
from ..support.bench import Bench

OPEN = {"thinking": "open"}
CLOSED = {"chat_template_kwargs": {"thinking": "closed"}}
COLOUR = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"], "additionalProperties": False}
PAINT: dict[str, Any] = {"type": "function", "function": {"name": "paint", "parameters": COLOUR}}
WAIT: dict[str, Any] = {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "additionalProperties": False}}}
FLAT = {"type": "function", **PAINT["function"]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}
ONE = {"parallel_tool_calls": False}
SHORT: dict[str, Any] = {"max_tokens": 48, "temperature": 0}

LINES = [
    chat("must", tools=[PAINT, WAIT], tool_choice="required", **ONE, **SHORT, **CLOSED),
    chat("named", tools=[PAINT, WAIT], tool_choice={"type": "function", "function": {"name": "wait"}}, **ONE, **SHORT, **CLOSED),
    response(
        "flat",
        tools=[FLAT],
        tool_choice={"type": "function", "name": "paint"},
        parallel_tool_calls=False,  # else a random model calls until it is cut off, and the last call is a text
        max_output_tokens=60,
        temperature=0,
    ),
    chat("thought", thinking_token_budget=3, chat_template_kwargs=OPEN, max_tokens=12, temperature=0),
    chat(
        "hidden", thinking_token_budget=3, include_reasoning=False, chat_template_kwargs={"thinking": "open"}, max_tokens=12, temperature=0
    ),
    chat("schema", response_format=SCHEMA, **SHORT, **CLOSED),
    chat("object", response_format={"type": "json_object"}, **SHORT, **CLOSED),
    chat("text", response_format={"type": "text"}, max_tokens=3, **CLOSED),
    chat("choice", structured_outputs={"choice": ["yes", "no"]}, **SHORT, **CLOSED),
    chat("regex", guided_regex="[ab]{3}", **SHORT, **CLOSED),
    completion("texts", "x", guided_choice=["yes", "no"], **SHORT),
    response(
        "formatted", text={"format": {"type": "json_schema", "name": "colour", "schema": COLOUR}}, max_output_tokens=48, temperature=0
    ),
    chat("never", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {"type": "null"}}}}),
    chat("broken", guided_regex="(?=a)a"),
    chat("both", response_format=SCHEMA, tools=[PAINT], tool_choice="required"),
    response("other", text={"format": {"type": "json_schema", "name": "x", "schema": {"type": "colour"}}}),
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    folder: Path = tmp_path_factory.mktemp("answers")
    bench = Bench(folder, write_thinker(folder / "thinker"))
    return answered(bench, LINES, prompt={"chat_template_args": {"thinking": "closed"}})


def message(ran: Answered, name: str) -> Any:
    return ChatCompletion.model_validate(ran.body(name)).choices[0].message


def test_a_tool_that_must_be_called(ran: Answered):
    must, named = ran.body("must")["choices"][0], message(ran, "named")
    assert must["finish_reason"] == "tool_calls"
    assert must["message"]["content"] is None
    assert [call["function"]["name"] for call in must["message"]["tool_calls"]] in (["paint"], ["wait"])
    assert {call.function.name for call in named.tool_calls} == {"wait"}
    answer = Response.model_validate(ran.body("flat"))
    calls = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(calls[0].arguments)["c"] in ("red", "blue")
    assert calls[0].call_id.startswith("call_")
    assert answer.output_text == ""


def test_reasoning_and_its_budget(ran: Answered):
    thought = ran.body("thought")
    ChatCompletion.model_validate(thought)
    assert thought["choices"][0]["message"]["reasoning"]
    assert thought["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    assert "<" not in (thought["choices"][0]["message"]["content"] or "")
    hidden = ran.body("hidden")["choices"][0]["message"]
    assert "reasoning" not in hidden
    assert hidden["content"] == thought["choices"][0]["message"]["content"]


def test_answers_that_are_held_to_a_grammar(ran: Answered):
    assert json.loads(message(ran, "schema").content)["c"] in ("red", "blue")
    assert message(ran, "choice").content in ("yes", "no")
    assert set(message(ran, "regex").content) <= {"a", "b"}
    assert ran.body("texts")["choices"][0]["text"] in ("yes", "no")
    assert json.loads(Response.model_validate(ran.body("formatted")).output_text)["c"] in ("red", "blue")
    assert message(ran, "object").content.lstrip().startswith("{")
    complete = {record["key"]: record["grammar_complete"] for record in ran.done.records}
    assert {name: complete[name] for name in ("schema", "choice", "texts", "formatted", "text")} == {
        "schema": True, "choice": True, "texts": True, "formatted": True, "text": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "param"),
    [("never", "response_format"), ("broken", "guided_regex"), ("both", "response_format"), ("other", "text.format")],
)
def test_a_grammar_that_cannot_be_had_is_refused(ran: Answered, name: str, param: str):
    line = next(line for line in ran.lines if line["custom_id"] == name)
    assert line["response"]["status_code"] == 400
    error = line["response"]["body"]["error"]
    assert (error["param"], error["code"]) == (param, "unsupported_schema")


def test_a_model_that_knows_no_tools_calls_one_that_it_must(bench: Bench):
    found = answered(bench, [chat("a", tools=[WAIT], tool_choice="required", **ONE, **SHORT)])
    assert "no parser is known for the model's chat template: calls are read by json_tools" in found.done.stderr
    choice = found.body("a")["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["wait"]


def test_a_model_that_does_not_reason_refuses_a_budget(bench: Bench):
    (line,) = answered(bench, [chat("a", thinking_token_budget=5)]).lines
    error = line["response"]["body"]["error"]
    assert (error["param"], error["code"]) == ("thinking_token_budget", "unsupported_value")
