"""Tests the answers of runs on a Batch file with the openai package's own types, and the errors of lines that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from ..support.batch_files import answered, batch, chat, completion, read_lines, request, response
from ..support.bench import Bench

LINES = [
    chat("chat", max_tokens=4, logprobs=True, top_logprobs=2, n=2),
    completion("text", max_tokens=4, logprobs=1, echo=True),
    completion("two", ["The king is", "A"], max_tokens=4),
    response(
        "response", max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=1, metadata={"a": "b"}, instructions="Hm"
    ),
    chat("refused", stream=True),
    '{"custom_id": "torn", "method',
    {"method": "POST", "url": "/v1/chat/completions", "body": {}},
    completion("scored", max_tokens=1, prompt_logprobs=1),
]


@pytest.fixture
def lines(bench: Bench) -> dict[str | None, Any]:
    ran = answered(bench, LINES)
    assert [line["custom_id"] for line in ran.lines] == ["chat", "text", "two", "response", "refused", None, None, "scored"]
    return {line["custom_id"] or line["error"]["code"]: line for line in ran.lines}


def test_answers_are_what_the_openai_package_takes(lines: dict[str | None, Any]):
    bodies = {name: line["response"]["body"] for name, line in lines.items() if line["response"] is not None}
    chatted = ChatCompletion.model_validate(bodies["chat"], strict=True)
    assert [choice.index for choice in chatted.choices] == [0, 1]
    assert chatted.choices[0].logprobs is not None
    assert [len(token.top_logprobs) for token in chatted.choices[0].logprobs.content or []] == [2] * 4
    text = Completion.model_validate(bodies["text"], strict=True).choices[0]
    assert text.text.startswith("The king is")
    assert text.logprobs is not None
    assert (text.logprobs.token_logprobs or [])[0] == 0  # the first token of a prompt has none
    assert "".join((text.logprobs.tokens or [])[1:]) == text.text  # the first is the BOS
    two = Completion.model_validate(bodies["two"], strict=True)
    assert [choice.logprobs for choice in two.choices] == [None, None]
    answer = Response.model_validate(bodies["response"])
    assert (answer.status, answer.metadata, answer.instructions) == ("incomplete", {"a": "b"}, "Hm")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4
    item = bodies["response"]["output"][0]
    assert [len(token["top_logprobs"]) for token in item["content"][0]["logprobs"]] == [1] * 4
    assert answer.output_text == item["content"][0]["text"]


def test_prompt_logprobs_are_written_as_vllm_does(lines: dict[str | None, Any]):
    positions = lines["scored"]["response"]["body"]["choices"][0]["prompt_logprobs"]
    assert positions[0] is None
    for position in positions[1:]:
        best = [entry for entry in position.values() if entry["rank"] == 1]
        assert len(best) == 1
        assert max(entry["logprob"] for entry in position.values()) == best[0]["logprob"]
        assert len(position) in (1, 2)


def test_a_refused_line_has_the_status_and_error_of_http(lines: dict[str | None, Any]):
    refused = lines["refused"]
    assert refused["error"] is None
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["request_id"].startswith("req_")
    error = refused["response"]["body"]["error"]
    assert {name: error[name] for name in ("type", "param", "code")} == {
        "type": "invalid_request_error", "param": "stream", "code": "unsupported_parameter",
    }  # fmt: skip
    assert "line 5" in error["message"]


def test_a_line_that_is_no_request_is_no_http_answer(lines: dict[str | None, Any]):
    for code, number in (("invalid_json_line", 6), ("missing_required_parameter", 7)):
        line = lines[code]
        assert line["response"] is None
        assert line["custom_id"] is None
        assert f"line {number}" in line["error"]["message"]


def test_a_folder_has_a_file_of_answers_and_one_of_errors(bench: Bench):
    to = bench.root / "answers"
    requests = bench.write_rows([line for line in LINES if isinstance(line, dict)], "requests.jsonl")
    assert batch(str(requests), "--model", str(bench.model), "--to", str(to)).exit_code == 3
    output, errors = read_lines(to / "output.jsonl"), read_lines(to / "errors.jsonl")
    assert [line["custom_id"] for line in output] == ["chat", "text", "two", "response", "scored"]
    assert [line["custom_id"] for line in errors] == ["refused", None]
    assert {line["response"]["status_code"] for line in output} == {200}
    sums = (to / "SHA256SUMS").read_text().split()
    assert sums[1::2] == ["output.jsonl", "errors.jsonl"]
    retry = [line for line in LINES if isinstance(line, dict) and line.get("custom_id") not in ("refused", None)]
    bench.write_rows(retry, "requests.jsonl")
    assert batch(str(requests), "--model", str(bench.model), "--to", str(to), "--overwrite").exit_code == 0
    assert not (to / "errors.jsonl").exists()


def test_what_goes_wrong_here_is_a_server_error(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    ran = answered(bench, [chat("a", max_tokens=2)])
    assert ran.done.code == 0
    long = answered(bench, [completion("long", "a word " * 200), request("x", "/score")], "--overwrite")
    error = long.lines[0]["response"]["body"]["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    from mlx_bulk.jobs.export.openai_refusals import refusal_of

    refusal = refusal_of({"stage": "generate", "error": "NotANumber", "message": "m", "input": json.dumps(chat("a"))})
    assert (refusal.status, refusal.error) == (500, {"message": "m", "type": "server_error", "param": None, "code": "not_anumber"})


def test_the_same_run_gives_the_same_bytes(bench: Bench, tmp_path: Path):
    first = answered(bench, LINES).lines
    assert answered(bench, LINES).lines == first
