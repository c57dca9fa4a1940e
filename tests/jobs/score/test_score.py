"""Tests scoring of documents end to end on a tiny model, against naive forwards of the same tokens."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ...checkpoints import BOS, CONTEXT, EOS, LLAMA, write_checkpoint
from ...runner.support.small_tokenizers import demo
from ..support.bench import Bench
from ..support.score_truth import DOCUMENTS, LONG, PROMPT, assert_close, documents, naive, score_all

# ------------------------------------------------------------------------------------------------------------ documents


@pytest.mark.parametrize(
    ("context", "prefix"),
    [
        ("auto", "bos"),
        (7, "none"),
        (1, "bos"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("auto", "none"), (7, "bos"), (1, "none"))),
    ],
)
def test_documents_have_the_logprobs_of_naive_forwards(bench: Bench, network: Any, context: int | str, prefix: str) -> None:
    done = documents(bench, DOCUMENTS, {"context": context, "prefix": prefix})
    assert done.code == 0
    width = CONTEXT if context == "auto" else int(context)
    spread: list[float] = []
    for text, record in zip(DOCUMENTS, done.records, strict=True):
        plain = demo().encode_text(text).ids.tolist()
        ids = [BOS, *plain] if prefix == "bos" and plain[:1] != [BOS] else plain
        expected = naive(network, ids, width)
        assert record["token_ids"] == ids
        assert_close(record["token_logprobs"], expected)
        scored = [value for value in record["token_logprobs"] if value is not None]
        assert record["scored_tokens"] == len(scored) == max(0, len(ids) - 1)
        assert record["sum_logprob"] == (math.fsum(scored) if scored else None)
        assert (record["bytes"], record["chars"], record["truncated"]) == (len(text.encode()), len(text), False)
        spread += scored
    assert np.std(spread) > 1  # else a wrong target would hide within the tolerance
    assert len(done.records[4]["token_ids"]) > CONTEXT  # it takes more than one window whatever the context


def test_counts_of_empty_short_and_broken_up_documents(bench: Bench) -> None:
    done = documents(bench, DOCUMENTS)
    names = ("scored_tokens", "bytes", "scored_bytes", "words", "chars")
    found = [tuple(record[name] for name in names) for record in done.records]
    assert found[:4] == [(0, 0, 0, 1, 0), (1, 1, 1, 1, 1), (2, 2, 2, 1, 1), (6, 6, 6, 3, 6)]
    assert found[5] == (2, 21, 8, 2, 21)
    assert done.records[0]["sum_logprob"] is None
    assert (done.records[0]["token_ids"], done.records[0]["token_logprobs"], done.records[0]["text_offset"]) == ([BOS], [None], [0])
    assert done.records[2]["text_offset"] == [0, 0, 0]  # both bytes of é start where it does


def test_strided_windows_see_what_the_guide_shows_them(bench: Bench, network: Any) -> None:
    done = documents(bench, [LONG], {"context": 12, "windows": "strided", "stride": 5})
    ids = done.records[0]["token_ids"]
    expected: list[float | None] = [None, *score_all(network, ids[:11], ids[1:12])]
    for begin in range(5, len(ids) - 7, 5):
        end = min(begin + 12, len(ids))
        expected += score_all(network, ids[begin : end - 1], ids[begin + 7 : end])
    assert_close(done.records[0]["token_logprobs"], expected)


def test_bos_before_every_window_counts_as_fed_and_is_recorded_once(bench: Bench, network: Any) -> None:
    done = documents(bench, [LONG], {"context": 12, "bos_every_window": True})
    ids = done.records[0]["token_ids"]
    assert ids.count(BOS) == 1
    expected: list[float | None] = [None, *score_all(network, ids[:12], ids[1:13])]
    while len(expected) < len(ids):
        at = len(expected)
        end = min(at + 11, len(ids))
        expected += score_all(network, [BOS, *ids[end - 12 : end - 1]], ids[at:end])
    assert_close(done.records[0]["token_logprobs"], expected)


@pytest.mark.slow
def test_gemma_gets_bos_before_every_window(tmp_path: Path) -> None:
    gemma = write_checkpoint(tmp_path / "gemma", {**LLAMA, "model_type": "gemma", "tie_word_embeddings": True})
    bench = Bench(tmp_path, gemma)
    found = [
        documents(bench, [LONG], {"context": 12, **how}, "--overwrite").records[0]["sum_logprob"]
        for how in ({}, {"bos_every_window": True}, {"bos_every_window": False}, {"prefix": "none"})
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_eos_in_place_of_bos_comes_before_the_first_window_alone(tmp_path: Path, network: Any) -> None:
    gemma = write_checkpoint(tmp_path / "gemma", {**LLAMA, "model_type": "gemma", "tie_word_embeddings": True})
    bench = Bench(tmp_path, without_bos(gemma, tmp_path / "bare"))
    score = {"context": 12, "prefix": "bos_or_eos"}
    found, plain, every = (
        documents(bench, [LONG], {**score, **how}, "--overwrite").records[0]["sum_logprob"]
        for how in ({}, {"bos_every_window": False}, {"bos_every_window": True})
    )
    assert found == plain != every


def test_eos_comes_before_the_first_token_without_bos(bench: Bench, tmp_path: Path, network: Any) -> None:
    bare = without_bos(bench.model, tmp_path / "bare")
    done = documents(Bench(tmp_path, bare), ["The king is"], {"prefix": "bos_or_eos"})
    ids = [EOS, *demo().encode_text("The king is").ids.tolist()]
    assert done.records[0]["token_ids"] == ids
    assert_close(done.records[0]["token_logprobs"], naive(network, ids, CONTEXT))


def test_a_warning_tells_of_unscored_first_tokens(bench: Bench, tmp_path: Path) -> None:
    bare = Bench(tmp_path, without_bos(bench.model, tmp_path / "bare"))
    done = bare.score(rows=[{"t": "The king"}], score={"text": "{{ t }}"})
    assert "the first token of each document is not scored (prefix: bos_or_eos puts EOS there)" in done.stderr
    assert done.records[0]["scored_bytes"] == 5


def without_bos(model: Path, folder: Path) -> Path:
    """The same model, with a tokenizer without BOS."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": None}))
    return folder


# ----------------------------------------------------------------------------------------------------------- all of them


def test_groups_are_text_or_json_or_null(bench: Bench) -> None:
    rows = [{"t": "a", "g": {"x": v}} for v in ("b", "1", None)]
    done = bench.score("-q", rows=rows, score={"text": "{{ t }}", "group_by": "g.x"})
    assert [record["group"] for record in done.records] == ["b", "1", None]
    done = bench.score("-q", "--overwrite", rows=[{"t": "a", "g": v} for v in (1, 2)], score={"text": "{{ t }}", "group_by": "g"})
    assert [record["group"] for record in done.records] == ["1", "2"]


def test_a_model_agrees_with_itself(bench: Bench) -> None:
    done = documents(bench, [LONG, "", "The king"], {"reference": str(bench.model)})
    assert done.code == 0
    for record in done.records:
        scored = [value is not None for value in record["token_logprobs"]]
        for name in ("kls", "delta_ps", "agreements", "reference_logprobs"):
            assert [value is not None for value in record[name]] == scored
        present = [i for i, there in enumerate(scored) if there]
        assert all(abs(record["kls"][i]) < 1e-5 and record["agreements"][i] for i in present)  # two float32 sums over 2,048 tokens
        assert [record["reference_logprobs"][i] for i in present] == [record["token_logprobs"][i] for i in present]


@pytest.mark.slow
def test_the_smaller_of_two_models_contexts_is_used_and_recorded(bench: Bench, tmp_path: Path) -> None:
    small = str(write_checkpoint(tmp_path / "small", {**LLAMA, "max_position_embeddings": 40}))
    done = documents(bench, [LONG], {"reference": small})
    assert done.code == 0
    auto = done.records
    with pa.ipc.open_file(str(done.output / "stats.arrow")) as reader:
        assert reader.read_all().column("context").to_pylist() == [40]
    given = documents(bench, [LONG], {"reference": small, "context": 40}, "--overwrite")
    assert given.records == auto
    refused = documents(bench, [LONG], {"reference": small, "context": 41}, "--overwrite")
    assert (refused.code, "score.context: found 41; expected at most 40, the reference's context" in refused.stderr) == (2, True)
    other = documents(Bench(tmp_path, Path(small)), [LONG], {"reference": str(bench.model), "context": 41})
    assert (other.code, "expected at most 40, the model's context" in other.stderr) == (2, True)


def test_a_template_without_a_column_is_warned_of_once_or_refused(bench: Bench) -> None:
    done = bench.score(rows=[{"t": "a"}, {"t": "b"}], score={"text": "Hello"})
    assert done.stderr.count("score.text: found 'Hello', the same text for each row") == 1
    done = bench.score("--overwrite", rows=[{"t": "a"}], score={"completion": " is"}, prompt={"text": "{{ t }}"})
    assert (done.code, "the same text" in done.stderr) == (0, False)


def test_another_tokenizer_is_refused_with_its_difference(bench: Bench, tmp_path: Path) -> None:
    other = tmp_path / "other"
    without_bos(bench.model, other)
    done = documents(bench, ["a"], {"reference": str(other)})
    assert done.code == 5
    assert "its BOS is none and the model's token 0" in done.stderr


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"score": {"text": "{{ t }}", "context": CONTEXT + 1}}, f"score.context: found {CONTEXT + 1}; expected at most {CONTEXT}"),
        (
            {"score": {"text": "{{ t }}", "windows": "strided", "stride": CONTEXT + 1}},
            f"score.stride: found {CONTEXT + 1}; expected at most {CONTEXT}",
        ),
        ({"score": {"text": "{{ x }}"}}, "score.text: no row has a column 'x'"),
        ({"score": {"text": "t"}}, 'score.text: found "t", which is a column\'s name; a template writes it {{ t }}'),
        ({"score": {"completion": "t"}, **PROMPT}, 'score.completion: found "t", which is a column\'s name'),
        ({"score": {"text": "{{ t"}}, "score.text, line 1: the template cannot be parsed"),
        ({"score": {"choices": "x"}, **PROMPT}, "score.choices: no row has a column 'x'"),
        ({"score": {"messages": "x"}}, "score.messages: no row has a column 'x'"),
        ({"score": {"text": "{{ t }}", "group_by": "x"}}, "score.group_by: no row has a column 'x'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_runs(bench: Bench, sections: dict[str, Any], said: str) -> None:
    done = bench.score("-q", rows=[{"t": "a"}], **sections)
    assert done.code in (2, 5)
    assert said in done.stderr


@pytest.mark.slow
def test_a_model_that_states_no_context_needs_one_for_documents(tmp_path: Path) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "max_position_embeddings"}
    bench = Bench(tmp_path, write_checkpoint(tmp_path / "model", config))
    done = documents(bench, [LONG])
    assert (done.code, "score.context: the model's config.json does not say" in done.stderr) == (2, True)
    assert documents(bench, [LONG], {"context": 32}).code == 0


@pytest.mark.parametrize("rows", [1, 4, 32])
def test_batches_and_the_order_of_rows_do_not_show(bench: Bench, network: Any, rows: int) -> None:
    texts = [LONG[:n] for n in (1, 230, 7, 40, 3, 90, 150, 12, 60, 25)]
    order = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]
    found = documents(bench, [texts[i] for i in order], batch={"rows": rows}).records
    for i, record in zip(order, found, strict=True):
        assert_close(record["token_logprobs"], naive(network, demo().encode(texts[i]).ids.tolist(), CONTEXT))


def test_the_same_command_finds_it_done(bench: Bench) -> None:
    first = documents(bench, DOCUMENTS)
    second = bench.command(bench.root / "config.yaml")
    assert second.code == 0
    assert second.last_line.startswith("complete already: 7 of 7 rows")
    assert second.records == first.records
