"""Tests the columns of a completion's parts, and what a row's prompt, tools and budget make of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mlx_bulk.configs.errors import ConfigError
from mlx_bulk.configs.rollout import RolloutConfig
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.jobs.generate.generate import GenerateJob
from mlx_bulk.jobs.generate.rollout import RolloutJob
from mlx_bulk.jobs.verify.rescore import rescore_run
from mlx_bulk.runner.answers.thinking_guide import ThinkingGuidance
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.core.requests import Row
from mlx_bulk.runner.models.checkpoint import Checkpoint
from mlx_bulk.runner.pipeline.job import Parts
from mlx_bulk.runner.text.tokenizer import Tokenizer, load_tokenizer

from ...checkpoints import EOS
from ...runner.support.small_tokenizers import demo
from ...thinkers import WEATHER, WIDTH, completed, thinker_tokenizer, write_thinker
from ..support.bench import Bench

TOOLS = [WEATHER]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return thinker_tokenizer(tmp_path_factory.mktemp("thinker") / "model")


def parts(tokenizer: Tokenizer, config: GenerateConfig) -> Parts:
    own = Tokenizer(tokenizer.hf, tokenizer.chat_template, config.prompt.chat_template_args)
    return Parts(config, ["q", "tools"], None, own, 1024, None, WIDTH, "llama", frozenset([EOS]), Checkpoint(Path("model"), None, {}))


def job(tokenizer: Tokenizer, **sections: Any) -> GenerateJob:
    least = {"job": "generate", "model": {"path": "x"}, "data": {"path": "x"}, "output": {"path": "x"}}
    return GenerateJob(parts(tokenizer, GenerateConfig.model_validate({**least, "prompt": {"user": "{{ q }}"}, **sections})))


def record(made: GenerateJob, text: str, finish: str = "stop", **columns: Any) -> dict[str, Any]:
    row = Row(0, "k", {"q": "Hi", **columns})
    (request,) = made.requests(row)
    return made.record(row, request, completed(made.parts.tokenizer, text, finish))


def parts_columns(made: GenerateJob) -> list[str]:
    known = ("reasoning", "reasoning_tokens", "reasoning_forced", "content", "tool_calls", "tool_error")
    return [name for name in made.schema.names if name in known]


def test_columns_follow_from_the_config_and_the_chat_template(thinker: Tokenizer) -> None:
    assert parts_columns(job(demo())) == []
    assert parts_columns(job(thinker)) == ["reasoning", "reasoning_tokens", "content"]
    assert parts_columns(job(thinker, reasoning={"strip": True})) == ["reasoning_tokens", "content"]
    assert parts_columns(job(thinker, reasoning={"marks": "none"})) == []
    assert parts_columns(job(thinker, reasoning={"budget": 3})) == ["reasoning", "reasoning_tokens", "reasoning_forced", "content"]
    assert parts_columns(job(thinker, prompt={"text": "{{ q }}"})) == []
    assert parts_columns(job(demo(), reasoning={"marks": ["<a>", "</a>"]})) == ["reasoning", "reasoning_tokens", "content"]
    tools = ["content", "tool_calls", "tool_error"]
    assert parts_columns(job(thinker, prompt={"user": "x", "tools": TOOLS})) == ["reasoning", "reasoning_tokens", *tools]
    assert parts_columns(job(demo(), tools={"parse": "always"})) == tools
    assert "sampled_logprobs" in job(thinker, reasoning={"budget": 3}).schema.names
    calls = job(thinker, prompt={"user": "x", "tools": TOOLS}).schema.field("tool_calls").type
    assert calls == pa.list_(pa.struct([("id", pa.string()), ("name", pa.string()), ("arguments", pa.large_string())]))


def test_a_record_has_the_whole_text_and_its_parts(thinker: Tokenizer) -> None:
    made = job(thinker, prompt={"user": "{{ q }}", "tools": TOOLS, "chat_template_args": {"thinking": "open"}})
    text = f"Hm.\n</think>\n\nI ask.\n{CALL}"
    values = record(made, text)
    assert values["completion"] == text
    assert (values["reasoning"], values["content"], values["tool_error"]) == ("Hm.", "I ask.", None)
    (call,) = values["tool_calls"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Köln"})
    assert call["id"].startswith("call_")
    assert record(made, text)["tool_calls"] == [call], "an id is the same in every session"
    cut = record(made, "Hm. And", "length")
    assert (cut["reasoning"], cut["content"], cut["tool_calls"], cut["tool_error"]) == ("Hm. And", None, [], None)


@pytest.mark.parametrize("thinking", ["open", "closed", "model"])
def test_words_of_a_user_that_look_like_marks_open_nothing(thinker: Tokenizer, thinking: str) -> None:
    made = job(thinker, prompt={"user": "What is <think>?", "chat_template_args": {"thinking": thinking}})
    values = record(made, "A mark.")
    assert (values["reasoning"], values["content"]) == (("A mark.", None) if thinking == "open" else (None, "A mark."))


def test_a_prefill_can_open_reasoning_or_a_call(thinker: Tokenizer) -> None:
    opened = job(thinker, prompt={"user": "x", "prefill": "<think>\nFirst,"})
    assert record(opened, " this.</think>4")["reasoning"] == " this."
    head = '<tool_call>\n{"name": "weather", '
    called = job(thinker, prompt={"user": "x", "tools": TOOLS, "prefill": head})
    assert [call["name"] for call in record(called, CALL.removeprefix(head))["tool_calls"]] == ["weather"]


def test_tools_of_a_column_and_rows_without(thinker: Tokenizer) -> None:
    made = job(thinker, prompt={"user": "{{ q }}", "tools": "tools"})
    with_tools, without = (made.requests(Row(0, "k", {"q": "Hi", "tools": each}))[0] for each in (json.dumps(TOOLS), None))
    assert '"name": "weather"' in with_tools.prompt.text
    assert "weather" not in without.prompt.text
    assert record(made, CALL, tools=None)["tool_calls"] is None
    assert record(made, CALL, tools=None)["content"] == CALL
    assert len(record(made, CALL, tools=TOOLS)["tool_calls"]) == 1


def test_no_tool_may_be_called(thinker: Tokenizer) -> None:
    made = job(thinker, prompt={"user": "x", "tools": TOOLS, "tool_choice": "none"})
    assert "weather" not in made.requests(Row(0, "k", {"q": "Hi"}))[0].prompt.text
    assert record(made, CALL)["tool_calls"] is None


def test_the_forced_end_of_reasoning_is_written_into_the_guidance(thinker: Tokenizer) -> None:
    opened, closed, left = (
        job(thinker, prompt={"user": "x", "chat_template_args": {"thinking": thinking}}, reasoning={"budget": 5, "message": "Stop.\n"})
        for thinking in ("open", "closed", "model")
    )
    guidances = [made.requests(Row(0, "k", {"q": "Hi"}))[0].work.guidance for made in (opened, closed, left)]
    end, begin = (thinker.encode_text(mark).ids.tolist() for mark in ("</think>", "<think>"))
    for guidance, is_open, opening in zip(guidances, (True, False, False), ((), (), tuple(begin)), strict=True):
        assert isinstance(guidance, ThinkingGuidance)
        assert (guidance.open, guidance.opening, guidance.budget) == (is_open, opening, 5)
        assert list(guidance.closing) == end + thinker.encode_text("\n\n").ids.tolist()
        assert list(guidance.message) == thinker.encode_text("Stop.\n").ids.tolist()
    assert len(end) == 1, "the id of the mark, not of its pieces"
    values = record(opened, "Hm.</think>\n\n4")
    assert values["reasoning_forced"] is False, "what the model writes by itself is not forced"


def test_only_newlines_may_stand_between_reasoning_and_a_grammar(thinker: Tokenizer) -> None:
    """Content is without newlines there, so it is the grammar's text alone."""
    guidance = (
        job(thinker, prompt={"user": "x", "chat_template_args": {"thinking": "open"}}, structured={"choice": ["yes"]})
        .requests(Row(0, "k", {"q": "Hi"}))[0]
        .work.guidance
    )
    assert isinstance(guidance, ThinkingGuidance)
    texts = {thinker.decode(np.array([token])) for token in guidance.blanks}
    assert texts
    assert {text.strip("\n") for text in texts} == {""}


def test_forced_tokens_are_not_trained_on(thinker: Tokenizer) -> None:
    least = {"job": "rollout", "model": {"path": "x"}, "data": {"path": "x"}, "output": {"path": "x"}}
    prompt = {"user": "{{ q }}", "chat_template_args": {"thinking": "open"}}
    made = RolloutJob(parts(thinker, RolloutConfig.model_validate({**least, "prompt": prompt, "reasoning": {"budget": 2}})))
    row = Row(0, "k", {"q": "Hi"})
    (request,) = made.requests(row)
    drawn = thinker.encode_text("ab").ids.tolist()[:1] * 2
    forced = [*thinker.encode_text("</think>").ids.tolist(), *thinker.encode_text("\n\n").ids.tolist()]
    outcome = completed(thinker, thinker.decode(np.array(drawn + forced)) + "4")
    values = made.values(row, request, outcome)
    assert values["completion_mask"].tolist() == [1, 1, *[0] * len(forced), *[1] * (len(outcome.ids) - 2 - len(forced))]
    assert values["reasoning_forced"] is True
    assert values["reasoning_tokens"] == 2
    turn = made.answers.turn(request, outcome, values["completion"])
    assert turn == {"role": "assistant", "content": "4"}, "rewards read the content"


def test_what_does_not_fit_the_model_is_refused_before_the_run(thinker: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"reasoning\.budget: the model's chat template has no marks of reasoning"):
        job(demo(), reasoning={"budget": 3})
    with pytest.raises(ConfigError, match=r"prompt\.tools: the chat template ignores tools"):
        job(demo(), prompt={"user": "x", "tools": TOOLS})
    with pytest.raises(ConfigError, match=r"tools\.parser: found qwen3; did you mean qwen3_coder\?"):
        job(thinker, tools={"parser": "qwen3"})
    picky = Tokenizer(demo().hf, "{{ raise_exception('two messages at least') }}")
    assert parts_columns(job(picky, prompt={"user": "x", "tools": TOOLS})) == ["content", "tool_calls", "tool_error"], "rows tell"


def test_a_run_says_once_that_calls_are_not_read(caplog: pytest.LogCaptureFixture) -> None:
    made = job(demo(), tools={"parse": "always"})
    assert [line for line in caplog.messages if "calls of tools are not read" in line] != []
    assert record(made, CALL)["content"] == CALL


def test_a_grammar_behind_reasoning_without_a_budget_is_warned_of(thinker: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    grammar = {"structured": {"choice": ["a", "b"]}}
    job(thinker, prompt={"user": "x", "chat_template_args": {"thinking": "closed"}}, **grammar)
    job(thinker, reasoning={"budget": 5}, **grammar)
    job(demo(), **grammar)
    assert caplog.messages == []
    job(thinker, **grammar)
    assert "set reasoning.budget" in caplog.messages[-1]


def test_a_call_that_is_required(thinker: Tokenizer) -> None:
    tools = [WEATHER, {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}]
    prompt = {"user": "x", "tools": tools}
    named = job(thinker, prompt={**prompt, "tool_choice": {"name": "time"}})
    spec = named.answers.call_spec(named.rows.settings(Row(0, "k", {"q": "Hi"})))
    assert spec is not None
    assert "time" in spec.text
    assert "weather" not in spec.text
    assert "grammar_complete" in named.schema.names
    with pytest.raises(ConfigError, match=r"prompt\.tool_choice: a call can be required where it is JSON between two marks"):
        job(thinker, prompt={**prompt, "tool_choice": "required"}, tools={"parser": "qwen3_coder"})
    odd = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}
    with pytest.raises(ConfigError, match=r"prompt\.tools: calls of these tools cannot be enforced: .*not"):
        job(thinker, prompt={"user": "x", "tools": [odd], "tool_choice": "required"})
    column = job(thinker, prompt={"user": "x", "tools": "tools", "tool_choice": {"name": "date"}})
    with pytest.raises(RowError, match="must call the tool 'date'; expected one of its tools: weather, time"):
        column.requests(Row(0, "k", {"q": "Hi", "tools": tools}))
    assert column.answers.call_spec(column.rows.settings(Row(0, "k", {"q": "Hi"}))) is None
    both = job(thinker, prompt={**prompt, "tool_choice": "required"}, structured={"choice": ["a"]})
    with pytest.raises(RowError, match="must call a tool and has a grammar of its own"):
        both.requests(Row(0, "k", {"q": "Hi"}))


@pytest.mark.parametrize("budget", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_with_a_budget(tmp_path: Path, budget: int) -> None:
    bench = Bench(tmp_path, write_thinker(tmp_path / "model"))
    prompt = {"user": "{{ q }}", "chat_template_args": {"thinking": "open"}}
    done = bench.run("-q", prompt=prompt, sampling={"max_tokens": 30, "ignore_eos": True}, reasoning={"budget": budget, "message": "Stop."})
    assert done.code == 0, done.stderr
    tokenizer = load_tokenizer(bench.model, None, {}, trust_remote_code=False)
    forced = [tokenizer.encode_text(text).ids.tolist() for text in ("Stop.", "</think>", "\n\n")]
    flat = [token for ids in forced for token in ids]
    for each in done.records:
        assert each["completion_ids"][budget : budget + len(flat)] == flat
        assert each["sampled_logprobs"][budget : budget + len(flat)] == [0.0] * len(flat)
        assert each["reasoning_forced"] is True
        assert each["reasoning_tokens"] == budget + len(forced[0])
        assert each["reasoning"].endswith("Stop.")
        assert "think>" not in each["content"]


def test_verify_leaves_out_what_was_forced(tmp_path: Path) -> None:
    bench = Bench(tmp_path, write_thinker(tmp_path / "model"))
    prompt = {"user": "{{ q }}", "chat_template_args": {"thinking": "open"}}
    done = bench.run(
        "-q", prompt=prompt, sampling={"max_tokens": 8, "temperature": 1.0}, reasoning={"budget": 2}, logprobs={"tokens": True}
    )
    assert done.code == 0, done.stderr
    comparison = rescore_run(done.output)
    assert comparison.passed, "the model's own logprobs are right, and those of forced tokens are not held against it"
    assert sum(comparison.left_out.values()) == done.table.num_rows


def test_a_run_that_calls_a_tool_behind_reasoning(tmp_path: Path) -> None:
    bench = Bench(tmp_path, write_thinker(tmp_path / "model"))
    closed = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "answer", "parameters": closed}}
    prompt = {"user": "{{ q }}", "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    prompt |= {"chat_template_args": {"thinking": "open"}}
    done = bench.run("-q", prompt=prompt, sampling={"max_tokens": 100, "temperature": 1.5, "n": 2}, reasoning={"budget": 3})
    assert done.code == 0, done.stderr
    assert done.table.num_rows == 10
    for each in done.records:
        assert (each["grammar_complete"], each["finish_reason"], each["content"], each["tool_error"]) == (True, "stop", None, None)
        (call,) = each["tool_calls"]
        assert call["name"] == "answer"
        assert isinstance(json.loads(call["arguments"])["sure"], bool)
        assert each["reasoning_tokens"] <= 3


def test_a_run_from_end_to_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, write_thinker(tmp_path / "model"))
    prompt = {"user": "{{ q }}", "tools": TOOLS, "chat_template_args": {"thinking": "open"}}
    done = bench.run("-q", prompt=prompt, sampling={"max_tokens": 4, "ignore_eos": True})
    assert done.code == 0, done.stderr
    for each in done.records:
        assert each["reasoning"] == each["completion"].strip("\n")
        assert (each["content"], each["tool_calls"], each["reasoning_tokens"]) == (None, [], 4)
