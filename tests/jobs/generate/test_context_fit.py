"""Tests prompts and completions that do not fit the model's context, by real runs."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from ...checkpoints import BOS, CONTEXT
from ..support.bench import Bench


def prompt_of(tokens: int) -> str:
    """Returns a prompt of so many tokens, BOS included."""
    return "x" * (tokens - 1)


def test_an_empty_prompt_is_its_bos(bench: Bench):
    (record,) = bench.run(rows=[{"q": ""}], logprobs={"prompt": True}).records
    assert (record["prompt"], record["prompt_ids"], record["prompt_text_offset"]) == ("", [BOS], [0])
    assert record["prompt_logprobs"] == [None]
    assert record["completion_tokens"] == 6


def test_a_prompt_without_tokens_is_quarantined(bench: Bench, model: Path):
    bare = bench.root / "bare"
    bare.mkdir()
    for file in model.iterdir():
        (bare / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((bare / "tokenizer.json").read_text())
    (bare / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    done = bench.run(rows=[{"q": ""}, {"q": "a"}], model={"path": str(bare)})
    assert done.code == 3
    assert [(error["row"], error["stage"]) for error in done.errors] == [(0, "tokenize")]
    assert "the prompt has no tokens, and this tokenizer puts no BOS before it" in done.errors[0]["message"]
    assert done.records[0]["prompt_tokens"] == 1


def test_max_tokens_is_clipped_to_the_context(bench: Bench):
    done = bench.run(rows=[{"q": prompt_of(CONTEXT - n)} for n in (20, 6, 2, 1)], sampling={"max_tokens": 6, "min_tokens": 5})
    assert done.code == 0
    assert [(r["prompt_tokens"], r["completion_tokens"]) for r in done.records] == [(CONTEXT - n, min(n, 6)) for n in (20, 6, 2, 1)]
    assert {record["finish_reason"] for record in done.records} == {"length"}
    with pa.OSFile(str(done.output / "stats.arrow")) as file:
        (stats,) = pa.ipc.open_file(file).read_all().to_pylist()
    # A row that ends where the context does is told apart from one that ends at its max_tokens; 90 + 6 is both.
    assert (stats["at_max_tokens"], stats["at_context"]) == (1, 3)


def test_too_long_is_an_error_with_both_numbers(bench: Bench):
    done = bench.run(rows=[{"q": prompt_of(CONTEXT)}, {"q": prompt_of(CONTEXT - 1)}])
    assert done.code == 3
    assert [record["row"] for record in done.records] == [1]
    assert [(error["row"], error["stage"]) for error in done.errors] == [(0, "too_long")]
    assert done.errors[0]["message"].startswith("the prompt has 96 tokens, the model's context 96: no room for one token more; ")
    assert "truncate_left or truncate_right" in done.errors[0]["message"]


@pytest.mark.parametrize(("policy", "side"), [("truncate_left", "end"), ("truncate_right", "start")])
def test_too_long_prompts_are_cut_so_that_max_tokens_have_room(bench: Bench, policy: str, side: str):
    text = " ".join(map(str, range(100)))
    done = bench.run(rows=[{"q": text}, {"q": text}], prompt={"text": "{{ q }}", "too_long": policy})
    record = done.records[0]
    assert (done.code, record["prompt_tokens"], record["completion_tokens"]) == (0, CONTEXT - 6, 6)
    assert done.stderr.count(f" tokens was cut to {CONTEXT - 6} to fit the context (prompt.too_long)") == 1
    whole = bench.run("--overwrite", rows=[{"q": text[:40]}]).records[0]["prompt_ids"]
    assert record["prompt_ids"][0] == BOS
    assert record["prompt"] == text  # the prompt as rendered; the offsets say what of it was kept
    if side == "start":
        assert record["prompt_ids"][:20] == whole[:20]
    else:
        assert record["prompt_text_offset"][0] == 0
        assert record["prompt_text_offset"][1] > 100
        assert text[record["prompt_text_offset"][-1] :] in ("9", "99", " 99")


def test_a_prompt_is_not_cut_to_nothing_when_max_tokens_fill_the_context(bench: Bench):
    """The prompt keeps half of the context, whatever max_tokens is."""
    done = bench.run(
        rows=[{"q": prompt_of(CONTEXT + 20)}], prompt={"text": "{{ q }}", "too_long": "truncate_left"}, sampling={"max_tokens": 500}
    )
    [record] = done.records
    assert record["prompt_tokens"] == CONTEXT // 2
    assert record["prompt_ids"][0] == BOS
    assert record["completion_tokens"] <= CONTEXT // 2
