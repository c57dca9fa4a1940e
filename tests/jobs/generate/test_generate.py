"""Tests the records of generation: exact columns for each config, and their meaning."""

import json
import math
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.jobs.generate.generate import sample_seed
from mlx_bulk.runner.core.arrays import Ids
from mlx_bulk.runner.text.tokenizer import load_tokenizer as load_tokenizer
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from ...checkpoints import BOS, VOCABULARY
from ..support.bench import ROWS, Bench, Done, Record

ECHO_TOLERANCE = 1e-4  # a prefill against one full forward, in float32 (the contract's)
DECODE_TOLERANCE = 2e-4  # decode against one full forward
ALL_LOGPROBS = {"prompt": True, "top": 3, "stats": True}

FRONT = {
    "row": "int64",
    "key": "string",
    "input": "struct<id: large_string, q: large_string>",
    "sample": "int32",
    "prompt": "large_string",
    "completion": "large_string",
    "finish_reason": "string",
    "stop_reason": "string",
    "truncated": "bool",
    "prompt_tokens": "int32",
    "completion_tokens": "int32",
    "prompt_ids": "list<item: int32>",
    "completion_ids": "list<item: int32>",
}
TOKENS = {"logprobs": "list<item: float>"}
SAMPLED = {"sampled_logprobs": "list<item: float>"}
OFFSETS = {"text_offset": "list<item: int32>", "prompt_text_offset": "list<item: int32>"}
BACK = {"cumulative_logprob": "double", "seed": "uint64"}
TOP = {"top_ids": "list<item: list<item: int32>>", "top_logprobs": "list<item: list<item: float>>"}
STATS = {"ranks": "list<item: int32>", "entropies": "list<item: float>"}


def of_prompt(columns: dict[str, str]) -> dict[str, str]:
    return {f"prompt_{name}": kind for name, kind in columns.items()}


@pytest.mark.parametrize(
    ("sections", "columns"),
    [
        ({"sampling": {"temperature": 1.0}}, {**FRONT, **TOKENS, **OFFSETS, **BACK}),
        ({}, {**FRONT, **TOKENS, **SAMPLED, **OFFSETS, **BACK}),  # greedy is another distribution than the model's
        pytest.param(
            {"sampling": {"temperature": 1.0, "top_k": 5}}, {**FRONT, **TOKENS, **SAMPLED, **OFFSETS, **BACK}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"sampling": {"temperature": 1.0, "columns": {"top_p": "q"}}},
            {**FRONT, **TOKENS, **SAMPLED, **OFFSETS, **BACK},
            marks=pytest.mark.slow,
        ),
        (
            {"sampling": {"temperature": 1.0, "n": 2, "stop": "x", "columns": {"n": "q", "stop": "id"}}},
            {**FRONT, **TOKENS, **OFFSETS, **BACK},
        ),
        pytest.param(
            {"sampling": {"temperature": 1.0}, "logprobs": {"tokens": False}}, {**FRONT, **OFFSETS, **BACK}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"sampling": {"temperature": 1.0}, "logprobs": {"top": 2}},
            {**FRONT, **TOKENS, **TOP, **OFFSETS, **BACK},
            marks=pytest.mark.slow,
        ),
        (
            {"sampling": {"temperature": 1.0}, "logprobs": ALL_LOGPROBS},
            {**FRONT, **TOKENS, **TOP, **STATS, **OFFSETS, **BACK, **of_prompt({**TOKENS, **TOP, **STATS})},
        ),
        (
            {"sampling": {"temperature": 1.0}, "logprobs": {**ALL_LOGPROBS, "tokens": False}},
            {**FRONT, **OFFSETS, **BACK, **of_prompt({**TOKENS, **TOP, **STATS})},
        ),
    ],
)
def test_columns_and_types(bench: Bench, sections: dict[str, Any], columns: dict[str, str]):
    done = bench.run("-q", rows=[{"id": "1", "q": "1"}, {"id": "2", "q": "1"}], **sections)
    assert done.code == 0
    schema = done.table.schema
    assert [(field.name, str(field.type)) for field in schema] == list(columns.items())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """Two samples of each standard row, with every option on."""
    sampling = {"max_tokens": 12, "temperature": 1.0, "n": 2}
    return Bench(tmp_path_factory.mktemp("generate"), model).run(sampling=sampling, logprobs=ALL_LOGPROBS, data={"key": "id"})


@pytest.fixture(scope="module")
def truths(done: Done, model: Path) -> list[NDArray[np.float64]]:
    """Log-probabilities [T, V] of each record's prompt and completion by one full forward."""
    network = load_model(model)[0]
    found: list[NDArray[np.float64]] = []
    for record in done.records:
        x = np.array(network(mx.array([record["prompt_ids"] + record["completion_ids"]]))[0].astype(mx.float32)).astype(np.float64)
        x -= x.max(axis=-1, keepdims=True)
        found.append(x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))
    return found


def test_identity_input_and_order(done: Done):
    records = done.records
    assert [(r["row"], r["key"], r["sample"]) for r in records] == [(i, row["id"], s) for i, row in enumerate(ROWS) for s in (0, 1)]
    assert [r["input"] for r in records] == [row for row in ROWS for _ in (0, 1)]
    assert [r["prompt"] for r in records] == [row["q"] for row in ROWS for _ in (0, 1)]
    assert [r["seed"] for r in records] == [sample_seed(0, row["id"], sample) for row in ROWS for sample in (0, 1)]
    assert all(0 <= record["seed"] < 2**53 for record in records)


def test_a_seed_hashes_its_four_parts_as_json():
    parts = (7, 'key "ключ"\u2028\n', 3, 1)
    digest = blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    assert sample_seed(*parts) == int.from_bytes(digest, "big") >> 11


def test_counts_and_ends(done: Done):
    for record in done.records:
        assert record["prompt_tokens"] == len(record["prompt_ids"]) == len(record["prompt_text_offset"])
        assert record["completion_tokens"] == len(record["completion_ids"]) == len(record["logprobs"]) == len(record["text_offset"])
        assert record["truncated"] == (record["finish_reason"] == "length")
        assert record["prompt_ids"][0] == BOS


def test_logprobs_of_prompt_and_completion_are_those_of_the_model(done: Done, truths: list[NDArray[np.float64]]):
    for record, truth in zip(done.records, truths, strict=True):
        ids = record["prompt_ids"] + record["completion_ids"]
        expected = truth[np.arange(len(ids) - 1), ids[1:]]
        n = record["prompt_tokens"]
        assert record["prompt_logprobs"][0] is None
        np.testing.assert_allclose(record["prompt_logprobs"][1:], expected[: n - 1], rtol=0, atol=ECHO_TOLERANCE)
        np.testing.assert_allclose(record["logprobs"], expected[n - 1 :], rtol=0, atol=DECODE_TOLERANCE)
        assert record["cumulative_logprob"] == math.fsum(record["logprobs"])  # of the stored float32, in float64


def test_top_ranks_and_entropies(done: Done, truths: list[NDArray[np.float64]]):
    for record, truth in zip(done.records, truths, strict=True):
        n = record["prompt_tokens"]
        for prefix, rows in (("prompt_", truth[: n - 1]), ("", truth[n - 1 : -1])):
            ids = np.array(record[f"{prefix}ids" if prefix else "completion_ids"][1 if prefix else 0 :])
            top_ids, top, ranks, entropies = (
                record[f"{prefix}{name}"][1 if prefix else 0 :] for name in ("top_ids", "top_logprobs", "ranks", "entropies")
            )
            assert np.array(top_ids).shape == np.array(top).shape == (len(rows), 3)
            np.testing.assert_allclose(np.array(top), np.sort(rows, axis=1)[:, :-4:-1], rtol=0, atol=DECODE_TOLERANCE)
            np.testing.assert_allclose(np.take_along_axis(rows, np.array(top_ids), axis=1), np.array(top), rtol=0, atol=DECODE_TOLERANCE)
            np.testing.assert_allclose(entropies, -(np.exp(rows) * rows).sum(axis=1), rtol=0, atol=1e-3)
            own = rows[np.arange(len(rows)), ids]
            # Ranks of near-ties may change places.
            slack = (np.abs(rows - own[:, None]) < DECODE_TOLERANCE).sum(axis=1)
            assert (np.abs(np.array(ranks) - 1 - (rows > own[:, None]).sum(axis=1)) < slack).all()
        for name in ("prompt_top_ids", "prompt_top_logprobs", "prompt_ranks", "prompt_entropies"):
            assert record[name][0] is None
            assert None not in record[name][1:]


def test_text_and_offsets(done: Done, model: Path):
    tokenizer = load_tokenizer(model, None, {}, trust_remote_code=False)

    def shown(ids: list[int]) -> str:
        found: Ids = np.array(ids, np.int32)
        return tokenizer.decode(found)

    several = 0
    for record in done.records:
        text, ids = record["completion"], record["completion_ids"]
        assert text == shown(ids)
        for i, start in enumerate(record["text_offset"]):
            before = shown(ids[:i])
            if text.startswith(before) and not before.endswith("\ufffd"):
                assert start == len(before)
            several += not text.isascii()
        for i, start in enumerate(record["prompt_text_offset"]):
            before = shown(record["prompt_ids"][:i]).rstrip("\ufffd")
            assert record["prompt"][:start] == before
    assert several  # else nothing here has a character of several bytes


# ------------------------------------------------------------------------------------------------- length and context


def test_reading_the_parts_by_datasets(bench: Bench):
    import datasets

    done = bench.run(batch={"rows_per_shard": 2}, logprobs=ALL_LOGPROBS)
    files = sorted(map(str, (done.output / "results").glob("*.arrow")))
    assert len(files) == 3
    loaded: Any = datasets.load_dataset("arrow", data_files=files, split="train", cache_dir=str(bench.root / "cache"))
    ours: list[Record] = done.records
    assert loaded["completion_ids"][:] == [record["completion_ids"] for record in ours]
    assert loaded["prompt_logprobs"][0][0] is None
    assert loaded["input"][:] == ROWS


def test_the_token_that_stops_leaves_no_text(bench: Bench):
    """Its id is recorded; its text is in the completion only when include_stop asks for it."""
    [plain] = bench.run("--set", "data.limit=1").records
    ids, starts = plain["completion_ids"], plain["text_offset"]
    at = next(i for i in range(1, len(ids)) if ids[i] not in ids[:i])
    for include, end in ((False, starts[at]), (True, starts[at + 1])):
        given = {"stop_token_ids": [ids[at]], "include_stop": include, "max_tokens": 6}
        [stopped] = bench.run("--set", "data.limit=1", "--overwrite", sampling=given).records
        assert stopped["completion_ids"] == ids[: at + 1]
        assert stopped["stop_reason"] == str(ids[at])
        assert stopped["completion"] == plain["completion"][:end]


def test_a_token_that_the_model_does_not_have_is_quarantined(bench: Bench, model: Path):
    """The tokenizer has one token more than the embedding: a read out of bounds would silently give noise."""
    larger = bench.root / "larger"
    shutil.copytree(model, larger)
    tokenizer = json.loads((larger / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": VOCABULARY, "content": "<more>", **flags})
    (larger / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = bench.run("--model", str(larger), rows=[{"q": "a <more> b"}, {"q": "a b"}], logprobs={"prompt": True})
    assert done.code == 3
    assert [(error["row"], error["stage"]) for error in done.errors] == [(0, "tokenize")]
    assert f"{VOCABULARY}, which is not below {VOCABULARY}" in done.errors[0]["message"]
    assert [record["row"] for record in done.records] == [1]


@pytest.mark.parametrize(("text", "warns"), [("Solve {q}", True), ("Solve {other}", False), ("{q} {{ q }}", False)])
def test_a_column_in_single_braces_is_warned_of_once(bench: Bench, text: str, warns: bool):
    """As Python's ``format`` writes it: each row would get the same text in silence."""
    told = "prompt.text: {q} stays as it is, the same text for each row; the column is written {{ q }}"
    assert bench.run(rows=[{"q": "1"}, {"q": "2"}], prompt={"text": text}).stderr.count(told) == warns
