"""Runs Batch files for /v1/embeddings with the real commands, and reads the answers with the types of the openai package."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from openai.types import CreateEmbeddingResponse

from ..support.batch_files import batch, chat, read_lines, request
from ..support.bench import Record
from ..support.embed_runs import TEXTS, WIDTH, embed, embedder, vectors
from ..support.exported_runs import export

CLOSE = 2e-6  # float32 sums over other batches


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedder(tmp_path_factory.mktemp("model") / "bert", max_seq_length=24)


def line(name: str, given: Any, **body: Any) -> Record:
    return request(name, "/v1/embeddings", input=given, **body)


def answers(root: Path, model: Path, lines: list[Record], *options: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The bodies of answers and of errors by custom_id, and what the command said."""
    (root / "requests.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    said = batch(str(root / "requests.jsonl"), "--model", str(model), "--to", f"{root}/answers/", *options)
    files = [root / "answers" / f"{name}.jsonl" for name in ("output", "errors")]
    found = [{one["custom_id"]: one["response"] for one in read_lines(file)} if file.exists() else {} for file in files]
    assert all(response["status_code"] == 200 for response in found[0].values())
    return {name: response["body"] for name, response in found[0].items()}, found[1], said.stderr


def numbers(body: Any) -> NDArray[np.float32]:
    read = CreateEmbeddingResponse.model_validate(body)
    assert [one.index for one in read.data] == list(range(len(read.data)))
    return np.array([one.embedding for one in read.data], np.float32)


def test_inputs_of_all_shapes_are_answered_as_openai_does(tmp_path: Path, model: Path) -> None:
    expected = vectors(embed(tmp_path, model))
    ids = [2, 20, 21, 3]
    found, refused, _ = answers(
        tmp_path,
        model,
        [
            line("one", TEXTS[0]),
            line("list", TEXTS, model="text-embedding-3-small", user="someone"),
            line("ids", ids),
            line("lists of ids", [ids, [2, 3]], encoding_format="float"),
            line("cut", TEXTS[0], dimensions=5),
        ],
    )
    assert refused == {}
    np.testing.assert_allclose(numbers(found["one"]), expected[:1], rtol=0, atol=CLOSE)
    np.testing.assert_allclose(numbers(found["list"]), expected, rtol=0, atol=CLOSE)
    assert numbers(found["ids"]).shape == (1, WIDTH)
    np.testing.assert_allclose(numbers(found["lists of ids"])[0], numbers(found["ids"])[0], rtol=0, atol=CLOSE)
    np.testing.assert_allclose(numbers(found["lists of ids"])[1], expected[3], rtol=0, atol=CLOSE)  # the empty text: [CLS] [SEP]
    cut = expected[:1, :5] / np.linalg.norm(expected[:1, :5])
    np.testing.assert_allclose(numbers(found["cut"]), cut, rtol=0, atol=CLOSE)
    usage = {name: CreateEmbeddingResponse.model_validate(body).usage.prompt_tokens for name, body in found.items()}
    assert usage == {"one": 11, "list": 40, "ids": 4, "lists of ids": 6, "cut": 11}
    assert found["one"]["model"] == str(model)


def test_base64_holds_the_same_float32(tmp_path: Path, model: Path) -> None:
    found, _, _ = answers(tmp_path, model, [line("f", TEXTS[:2]), line("b", TEXTS[:2], encoding_format="base64")])
    packed = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in found["b"]["data"]]
    assert np.array_equal(numbers(found["f"]), packed)


def test_lines_that_cannot_be_answered_are_refused_one_by_one(tmp_path: Path, model: Path) -> None:
    lines = [
        line("fine", "a"),
        chat("chat"),
        line("long", ["a", "a " * 30]),
        line("large", "a", dimensions=WIDTH + 1),
        line("empty", []),
        line("unknown id", [[5, 10**6]]),
        line("format", "a", encoding_format="hex"),
        line("cuts", "a", truncate_prompt_tokens=5),
        line("unknown", "a", dimension=5),
    ]
    found, refused, said = answers(tmp_path, model, lines)
    assert list(found) == ["fine"]
    errors = {name: (one["status_code"], one["body"]["error"]["param"], one["body"]["error"]["code"]) for name, one in refused.items()}
    assert errors == {
        "chat": (400, "url", "unsupported_endpoint"),
        "long": (400, "input[1]", "context_length_exceeded"),
        "large": (400, "dimensions", "invalid_value"),
        "empty": (400, "input", "invalid_value"),
        "unknown id": (400, "input", "invalid_value"),
        "format": (400, "encoding_format", "invalid_value"),
        "cuts": (400, "truncate_prompt_tokens", "unsupported_parameter"),
        "unknown": (400, "dimension", "unknown_parameter"),
    }
    assert "expected /v1/embeddings; a run generates or embeds: put such lines into a file" in refused["chat"]["body"]["error"]["message"]
    assert "lines of other endpoints are refused one by one: /v1/chat/completions (1)" in said


def test_long_inputs_are_cut_where_the_config_says_so(tmp_path: Path, model: Path) -> None:
    cut = "embed.too_long=truncate_right"
    found, refused, _ = answers(tmp_path, model, [line("a", ["a " * 30, "a " * 22]), line("b", [[5] * 30])], "--set", cut)
    assert refused == {}
    assert (found["a"]["usage"]["prompt_tokens"], found["b"]["usage"]["prompt_tokens"]) == (48, 24)
    np.testing.assert_allclose(*numbers(found["a"]), rtol=0, atol=CLOSE)


def test_other_runs_are_exported_as_answers_too(tmp_path: Path, model: Path) -> None:
    done = embed(tmp_path, model)
    export(done.output, "openai", tmp_path / "lines.jsonl")
    found = np.concatenate([numbers(one["response"]["body"]) for one in read_lines(tmp_path / "lines.jsonl")])
    assert np.array_equal(found, vectors(done))
    done = embed(tmp_path, model, "--overwrite", embed={"dtype": "ubinary"})
    refused = export(done.output, "openai", tmp_path / "x.jsonl", code=2).stderr
    assert "--format openai: holds floats, and this run has embed.dtype: ubinary; use one of parquet, jsonl, csv" in refused
