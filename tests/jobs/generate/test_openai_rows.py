"""Tests that each field of a Batch line acts: on the record of its row, and on that of no other."""

import json
import logging
import shutil
from typing import Any

import pytest
from mlx_bulk.jobs.generate import openai_rows

from ...checkpoints import EOS, VOCABULARY
from ..support.batch_files import HI, answered, chat, completion, request, response
from ..support.bench import Bench

SAMPLING: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8, "seed": 7}
# field of the body -> what its config column would hold
VALUES: dict[str, tuple[Any, str, Any]] = {
    "temperature": (0.0, "temperature", 0.0),
    "top_p": (0.05, "top_p", 0.05),
    "top_k": (1, "top_k", 1),
    "min_p": (0.9, "min_p", 0.9),
    "repetition_penalty": (2.0, "repetition_penalty", 2.0),
    "presence_penalty": (2.0, "presence_penalty", 2.0),
    "frequency_penalty": (2.0, "frequency_penalty", 2.0),
    "logit_bias": ({"300": 100}, "logit_bias", {"300": 100}),
    "max_tokens": (2, "max_tokens", 2),
    "max_completion_tokens": (3, "max_tokens", 3),
    "stop": ("e", "stop", ["e"]),
    "stop_token_ids": ([300, 301, 302, 303, 304, 305, 306, 307], "stop_token_ids", [300, 301, 302, 303, 304, 305, 306, 307]),
    "seed": (12, "seed", 12),
    "n": (2, "n", 2),
}
KEPT = ("completion_ids", "completion", "finish_reason", "stop_reason", "sample")


def test_a_body_s_sampling_is_that_of_a_row_s_columns(bench: Bench):
    """What the columns do to the draw is tested with them; presence_penalty only acts once a token comes again."""
    biased: dict[str, Any] = {"logit_bias": {"300": 6.0}}
    base: dict[str, Any] = {**SAMPLING, **biased}
    lines = [chat("plain", **base), *(chat(name, **{**base, name: value}) for name, (value, _, _) in VALUES.items())]
    given = [base, *({**base, name: value} for _, name, value in VALUES.values())]
    ran = answered(bench, lines)
    rows = [{"q": HI[0]["content"], "given": one} for one in given]
    names = {name for one in given for name in one}
    expected = bench.run(
        "--overwrite", rows=rows, prompt={"user": "{{ q }}"}, sampling={"columns": {name: f"given.{name}" for name in names}}
    ).records
    assert [[record[name] for name in KEPT] for record in ran.done.records] == [[record[name] for name in KEPT] for record in expected]
    plain = ran.records("plain")[0]
    for name in set(VALUES) - {"n", "stop_token_ids", "stop"}:
        assert ran.records(name)[0]["completion_ids"] != plain["completion_ids"], name
    assert len(ran.records("n")) == 2


def test_where_a_completion_ends(bench: Bench):
    lines = [
        completion("plain", max_tokens=8, temperature=0),
        completion("eos", max_tokens=8, temperature=0, logit_bias={str(EOS): 100}),
        completion("ignored", max_tokens=8, temperature=0, logit_bias={str(EOS): 100}, ignore_eos=True),
        completion("later", max_tokens=8, temperature=0, logit_bias={str(EOS): 100}, min_tokens=3),
    ]
    ran = answered(bench, lines)
    plain = ran.records("plain")[0]["completion"]
    assert [(one["completion_tokens"], one["finish_reason"]) for one in ran.done.records] == [
        (8, "length"),
        (1, "stop"),
        (8, "length"),
        (4, "stop"),
    ]
    stop = plain[2:4]
    cut = [completion("cut", stop=stop, max_tokens=8, temperature=0)]
    kept = [completion("kept", stop=stop, max_tokens=8, temperature=0, include_stop_str_in_output=True)]
    ran = answered(bench, cut + kept, "--overwrite")
    at = plain.index(stop)
    assert [one["completion"] for one in ran.done.records] == [plain[:at], plain[: at + 2]]
    assert [one["stop_reason"] for one in ran.done.records] == [stop, stop]


def test_absent_fields_take_the_config_s_values(bench: Bench):
    ran = answered(bench, [chat("a"), chat("b", max_tokens=2, n=1)], sampling={"max_tokens": 5, "n": 2, "temperature": 0})
    assert [record["completion_tokens"] for record in ran.done.records] == [5, 5, 2]
    (response_only,) = answered(bench, [response("a")], "--overwrite", sampling={"n": 3}).done.records
    assert response_only["sample"] == 0  # that API has one answer


def test_logprobs_are_there_where_a_line_asks_for_them(bench: Bench):
    lines = [
        chat("none", max_tokens=3),
        chat("own", max_tokens=3, logprobs=True),
        chat("two", max_tokens=3, logprobs=True, top_logprobs=2),
        completion("three", max_tokens=3, logprobs=3),
        completion("echo", max_tokens=3, logprobs=1, echo=True),
        completion("prompt", max_tokens=3, prompt_logprobs=2),
        response("response", max_output_tokens=3, include=["message.output_text.logprobs"], top_logprobs=1),
    ]
    ran = answered(bench, lines)
    found = {record["key"]: record for record in ran.done.records}
    assert {name: record["logprobs"] is not None for name, record in found.items()} == {
        "none": False, "own": True, "two": True, "three": True, "echo": True, "prompt": False, "response": True,
    }  # fmt: skip
    tops = {name: None if (top := record["top_ids"]) is None else {len(ids) for ids in top} for name, record in found.items()}
    assert tops == {"none": None, "own": None, "two": {2}, "three": {3}, "echo": {1}, "prompt": None, "response": {1}}
    echoed = {name: record["prompt_logprobs"] is not None for name, record in found.items()}
    assert [name for name, there in echoed.items() if there] == ["echo", "prompt"]
    assert {len(ids) for ids in found["prompt"]["prompt_top_ids"][1:]} == {2}
    assert found["three"]["top_ids"][0][:1] == found["echo"]["top_ids"][0]  # the likeliest come first
    assert ran.done.code == 0


def test_a_file_without_logprobs_has_no_columns_of_them(bench: Bench):
    ran = answered(bench, [chat("a", max_tokens=2, top_logprobs=5), chat("b", max_tokens=2, logprobs=False)])
    assert not {"logprobs", "top_ids", "prompt_logprobs"} & set(ran.done.table.schema.names)
    assert [record["key"] for record in ran.done.records] == ["b"]


def test_prompts_as_ids_and_several_prompts(bench: Bench):
    alone = answered(bench, [completion(str(i), text, max_tokens=4) for i, text in enumerate(["The king", "A longer text of words"])])
    ids = [record["prompt_ids"] for record in alone.done.records]
    lines = [
        completion("ids", ids[0][1:], max_tokens=4),
        completion("texts", ["The king", "A longer text of words"], n=2, max_tokens=4),
        completion("lists", ids, max_tokens=4),
        completion("far", [[5], [VOCABULARY]], max_tokens=4),
    ]
    ran = answered(bench, lines, "--overwrite")
    texts, lists = ran.records("texts"), ran.records("lists")
    assert ran.records("ids")[0]["prompt_ids"] == ids[0][1:]
    assert ran.records("ids")[0]["prompt"] == "The king"
    assert [record["sample"] for record in texts] == [0, 1, 2, 3]
    assert [record["prompt_ids"] for record in texts] == [ids[0], ids[0], ids[1], ids[1]]
    expected = [record["completion_ids"] for record in alone.done.records]
    assert [record["completion_ids"] for record in texts] == [expected[0], expected[0], expected[1], expected[1]]
    assert [record["completion_ids"] for record in lists] == expected
    usage = ran.body("texts")["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids[0]) + len(ids[1]), 16)
    (failed,) = ran.done.errors
    assert (failed["key"], failed["stage"]) == ("far", "tokenize")


TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% for t in tools or [] %}[{{ t['function']['name'] }}]"
    "{% endfor %}{{ colour or '' }}{{ reasoning_effort or '' }}{% if enable_thinking == false %}no thoughts{% endif %}<assistant>"
)


def test_what_a_chat_template_sees(bench: Bench):
    tool: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    lines = [
        chat("plain"),
        chat("colour", chat_template_kwargs={"colour": "red"}),
        chat("effort", reasoning_effort="low"),
        chat("off", reasoning_effort="none"),
        chat("developer", [{"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}, *HI]),
        chat("begun", [*HI, {"role": "assistant", "content": "It is"}], continue_final_message=True),
        chat("tools", tools=[tool]),
        chat("hidden", tools=[tool], tool_choice="none"),
        response("told", instructions="Be kind.", tools=[{"type": "function", **tool["function"]}]),
    ]
    ran = answered(bench, lines, prompt={"chat_template": TEMPLATE}, sampling={"max_tokens": 1})
    asked = f"<user>{HI[0]['content']}"
    assert {record["key"]: record["prompt"] for record in ran.done.records} == {
        "plain": f"{asked}<assistant>",
        "colour": f"{asked}red<assistant>",
        "effort": f"{asked}low<assistant>",
        "off": f"{asked}no thoughts<assistant>",
        "developer": f"<system>Be brief.{asked}<assistant>",
        "begun": f"{asked}<assistant>It is",
        "tools": f"{asked}[add]<assistant>",
        "hidden": f"{asked}<assistant>",
        "told": f"<system>Be kind.{asked}[add]<assistant>",
    }


def test_a_developer_stays_one_where_the_template_knows_it(bench: Bench):
    template = "{% if messages[0].role == 'developer' %}!{% endif %}{{ messages[0].content }}"
    ran = answered(bench, [chat("a", [{"role": "developer", "content": "x"}])], prompt={"chat_template": template})
    assert ran.done.records[0]["prompt"] == "!x"


def test_a_prompt_that_is_too_long(bench: Bench):
    long = completion("long", "a word " * 200)
    (error,) = answered(bench, [long]).done.errors
    assert error["stage"] == "too_long"
    assert answered(bench, [long, response("r", truncation="auto")], "--overwrite", prompt={"too_long": "truncate_left"}).done.errors == []


def test_parameters_that_the_model_or_each_other_refuse(bench: Bench):
    lines = [
        chat("bias", logit_bias={str(VOCABULARY): 1}),
        chat("stop", stop_token_ids=[VOCABULARY]),
        chat("min", min_tokens=9, max_tokens=4),
    ]
    ran = answered(bench, lines)
    errors = [line["response"]["body"]["error"] for line in ran.lines]
    assert [(error["param"], error["code"]) for error in errors] == [
        ("logit_bias", "invalid_value"),
        ("stop_token_ids", "invalid_value"),
        ("min_tokens", "invalid_value"),
    ]


def test_a_model_without_a_chat_template_answers_completions(bench: Bench):
    ran = answered(bench, [chat("a"), completion("b")], prompt={"chat_template": None}, model={"path": str(without_template(bench))})
    assert [line["response"]["status_code"] for line in ran.lines] == [400, 200]
    assert "no chat template" in ran.lines[0]["response"]["body"]["error"]["message"]


def without_template(bench: Bench) -> Any:
    folder = bench.root / "base"
    shutil.copytree(bench.model, folder)
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_models_that_lines_name(bench: Bench, caplog: pytest.LogCaptureFixture):
    openai_rows.say_once.cache_clear()
    lines = [chat("a", model="gpt-4o"), completion("b", model=bench.model.name), completion("c", model="gpt-4o")]
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        ran = answered(bench, lines, "--log-level", "warning")
    assert ran.done.code == 0
    assert f"other models are named and {bench.model} answers: gpt-4o (2)" in ran.done.stderr
    ran = answered(bench, lines, "--overwrite", data={"other_models": "refuse"})
    assert [line["response"]["status_code"] for line in ran.lines] == [404, 200, 404]
    error = ran.lines[0]["response"]["body"]["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_fields_without_effect_are_counted_once(bench: Bench):
    openai_rows.say_once.cache_clear()
    lines = [
        chat("a", user="u", metadata={"x": "y"}),
        completion("b", user="v"),
        response("c", text={"verbosity": "low"}),
        chat("d", foo=1),
    ]
    ran = answered(bench, lines, sampling={"max_tokens": 1})
    assert "fields without effect here are ignored: user (2), metadata (1), text.verbosity (1)" in ran.done.stderr
    assert [error["error"] for error in ran.done.errors] == ["unknown_parameter"]
    ran = answered(bench, lines, "--overwrite", data={"unknown_fields": "ignore"}, sampling={"max_tokens": 1})
    assert ran.done.errors == []
    assert "unknown fields are ignored: foo (1)" in ran.done.stderr


def test_retried_errors_obey_a_changed_rule(bench: Bench):
    lines = [chat("a"), chat("b", foo=1)]
    assert answered(bench, lines).done.code == 3
    ran = answered(bench, lines, "--retry-errors", data={"unknown_fields": "ignore"})
    assert ran.done.code == 0
    assert [line["custom_id"] for line in ran.lines] == ["a", "b"]


def test_a_line_of_another_endpoint_costs_itself(bench: Bench):
    ran = answered(bench, [request("a", "/v1/embeddings", input="x"), chat("b")])
    assert [line["response"]["status_code"] for line in ran.lines] == [400, 200]
    assert ran.done.errors[0]["error"] == "unsupported_endpoint"
