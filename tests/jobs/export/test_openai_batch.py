"""Tests OpenAI Batch lines of real runs with the openai package's own types: choices, usage, errors, order, logprobs."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.jobs.export import openai_batch
from openai.types import Completion
from openai.types.chat import ChatCompletion

from ...checkpoints import DEMO
from ..support.bench import Bench, Done, Record
from ..support.exported_runs import HOSTILE, export


def lines(done: Done, to: Path) -> list[Record]:
    export(done.output, "openai", to)
    return [json.loads(line) for line in to.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    return Bench(tmp_path_factory.mktemp("chats"), model).run(
        rows=HOSTILE,
        data={"key": "id"},
        prompt={"user": "{{ q }}"},
        sampling={"n": 2, "temperature": 1.5, "max_tokens": 40, "seed": 3},
        logprobs={"prompt": True, "top": 2},
        batch={"rows_per_shard": 3},
    )


def test_chats_are_chat_completions(chats: Done, tmp_path: Path):
    found = lines(chats, tmp_path / "out.jsonl")
    records = iter(chats.records)
    assert [line["custom_id"] for line in found] == [row["id"] for row in HOSTILE]
    assert len({line["id"] for line in found}) == len(found)
    for line in (line for line in found if line["custom_id"] != "no"):
        assert line["response"]["status_code"] == 200
        body = ChatCompletion.model_validate(line["response"]["body"], strict=True)
        pair = [next(records), next(records)]
        assert [choice.index for choice in body.choices] == [record["sample"] for record in pair] == [0, 1]
        assert [choice.message.content for choice in body.choices] == [record["completion"] for record in pair]
        assert [choice.finish_reason for choice in body.choices] == [record["finish_reason"] for record in pair]
        assert body.usage is not None
        assert body.usage.prompt_tokens == pair[0]["prompt_tokens"]
        assert body.usage.completion_tokens == sum(record["completion_tokens"] for record in pair)
        for choice, record in zip(body.choices, pair, strict=True):
            assert choice.logprobs is not None
            assert choice.logprobs.content is not None
            assert [entry.logprob for entry in choice.logprobs.content] == record["logprobs"]
            assert [[other.logprob for other in entry.top_logprobs] for entry in choice.logprobs.content] == record["top_logprobs"]
            whole = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content).decode(errors="replace")
            assert whole.startswith(record["completion"])


def test_a_quarantined_row_is_an_error_in_its_place(chats: Done, tmp_path: Path):
    line = lines(chats, tmp_path / "out.jsonl")[3]
    assert line["error"] is None
    assert line["response"]["status_code"] == 400
    error = line["response"]["body"]["error"]
    assert error == {"message": chats.errors[0]["message"], "type": "invalid_request_error", "param": None, "code": "invalid_value"}


def test_texts_are_completions_with_their_prompts_where_those_are_scored(bench: Bench, tmp_path: Path):
    done = bench.run(data={"key": "id"}, sampling={"max_tokens": 12}, logprobs={"prompt": True, "top": 1})
    for line, record in zip(lines(done, tmp_path / "out.jsonl"), done.records, strict=True):
        [choice] = line["response"]["body"]["choices"]
        logprobs = choice["logprobs"]
        assert choice["text"] == record["prompt"] + record["completion"]
        assert logprobs["token_logprobs"] == record["prompt_logprobs"] + record["logprobs"]
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None  # as the API has it, if not its types
        assert logprobs["text_offset"][len(record["prompt_ids"])] == len(record["prompt"])
        logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}
        body = Completion.model_validate(line["response"]["body"], strict=True)
        assert body.usage is not None
        assert body.usage.total_tokens == record["prompt_tokens"] + record["completion_tokens"]


def test_completions_alone(bench: Bench, tmp_path: Path):
    done = bench.run(sampling={"max_tokens": 12})
    for line, record in zip(lines(done, tmp_path / "out.jsonl"), done.records, strict=True):
        [choice] = Completion.model_validate(line["response"]["body"], strict=True).choices
        assert choice.text == record["completion"]
        assert choice.logprobs is not None
        assert choice.logprobs.text_offset == record["text_offset"]
        assert math.fsum(choice.logprobs.token_logprobs or []) == pytest.approx(record["cumulative_logprob"])


@pytest.mark.parametrize("prompt", [{"user": "{{ q }}"}, {"text": "{{ q }}"}])
def test_without_logprobs_no_tokenizer_is_needed(bench: Bench, tmp_path: Path, prompt: Record):
    model = shutil.copytree(bench.model, bench.root / "moved")
    done = bench.run(model={"path": str(model)}, prompt=prompt, logprobs={"tokens": False, "prompt": "user" in prompt})
    shutil.rmtree(model)
    assert {choice["logprobs"] for line in lines(done, tmp_path / "out.jsonl") for choice in line["response"]["body"]["choices"]} == {None}


def test_a_missing_or_changed_tokenizer_is_reported(bench: Bench, tmp_path: Path):
    model = shutil.copytree(bench.model, bench.root / "moved")
    done = bench.run(model={"path": str(model)})
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"model_max_length": 7}))
    said = export(done.output, "openai", tmp_path / "out.jsonl", code=5).stderr
    assert f"the tokenizer in {model} is not the one that the run was made with" in said
    shutil.rmtree(model)
    assert f"model.path: no folder {model}" in export(done.output, "openai", tmp_path / "out.jsonl", code=5).stderr
    assert list(tmp_path.glob("*out.jsonl*")) == []


def test_the_demo_model_has_its_tokenizer(bench: Bench, tmp_path: Path):
    done = bench.run(model={"path": "demo"}, data={"limit": 1})
    assert (DEMO / "tokenizer.json").is_file()
    assert lines(done, tmp_path / "out.jsonl")[0]["response"]["body"]["model"] == "demo"


def test_a_row_that_failed_in_part_has_both_a_response_and_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    done = bench.run(sampling={"n": 3, "temperature": 1.0}, logprobs={"tokens": False})
    kept = done.table.to_batches()[0].slice(0, 3)
    failed = [{"row": 0, "key": "0", "sample": 1, "stage": "generate", "message": "no number"}]
    monkeypatch.setattr(openai_batch, "read_results", lambda *_: iter([kept.take([0, 2])]))
    monkeypatch.setattr(openai_batch, "read_errors", lambda *_: iter([kept.from_pylist(failed)]))
    stored: dict[str, Any] = json.loads((done.output / "run.json").read_text())
    config = GenerateConfig.model_validate(stored["config"])
    monkeypatch.setattr(openai_batch, "record_columns", lambda _: kept.schema.names)
    [line] = [json.loads(line.text) for line in openai_batch.openai_lines(done.output, stored, config, None)]
    assert [choice["index"] for choice in line["response"]["body"]["choices"]] == [0, 2]
    assert line["error"] == {"code": "generate", "message": "sample 1: no number"}


def test_rows_without_a_key_are_named_by_their_place(bench: Bench, tmp_path: Path):
    path = bench.write_config(data={"key": "id"})
    (bench.root / "rows.jsonl").write_text('{"id": "a", "q": "x"}\nnot json\n')
    assert [line["custom_id"] for line in lines(bench.command(path), tmp_path / "out.jsonl")] == ["a", "row-1"]
