"""Tests which tokens DRY's sequence breakers name, in tokenizers of several kinds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.sampling import SamplingConfig
from mlx_bulk.jobs.generate.sequence_breakers import SequenceBreakers
from mlx_bulk.runner.core.errors import RowError
from mlx_bulk.runner.text.tokenizer import Tokenizer

from ...runner.support.small_tokenizers import demo, metaspace, sentencepiece_like
from ..support.bench import Bench


@pytest.mark.parametrize("make", [demo, lambda: sentencepiece_like(bpe=True), metaspace])
@pytest.mark.parametrize("text", ["e", "k", "ing"])
def test_each_token_that_holds_the_text_is_one(make: Callable[[], Tokenizer], text: str):
    tokenizer = make()
    pieces = {i: tokenizer.token_bytes(i) for i in range(tokenizer.size)}
    truth = {i for i, piece in pieces.items() if text.encode() in piece}
    if truth:
        assert SequenceBreakers(tokenizer).ids([text]) == truth
    else:
        with pytest.raises(RowError):
            SequenceBreakers(tokenizer).ids([text])


def test_the_defaults_are_tokens_of_a_common_tokenizer():
    tokenizer, breakers = demo(), SamplingConfig().dry_sequence_breakers
    together = SequenceBreakers(tokenizer).ids(breakers)
    assert all(set(tokenizer.encode_text(text).ids.tolist()) <= together for text in breakers)
    assert SequenceBreakers(tokenizer).ids([]) == frozenset()


def test_a_string_that_no_token_holds_is_refused_at_the_start(bench: Bench):
    done = bench.run(sampling={"dry_multiplier": 0.8, "dry_sequence_breakers": ["no such token"]})
    message = 'sampling.dry_sequence_breakers: no token of the model holds "no such token"; give a shorter one'
    assert done.code == 2
    assert message in done.stderr
    assert not (bench.root / "run" / "parts").exists()


def test_a_row_s_own_costs_that_row(bench: Bench):
    rows: list[dict[str, Any]] = [{"q": "a", "b": None}, {"q": "b", "b": ["no such token"]}, {"q": "c", "b": "e"}]
    done = bench.run(rows=rows, sampling={"dry_multiplier": 0.8, "columns": {"dry_sequence_breakers": "b"}})
    assert done.code == 3
    assert [record["row"] for record in done.records] == [0, 2]
    assert [(error["row"], error["stage"]) for error in done.errors] == [(1, "sampling")]


def test_the_vocabulary_is_left_alone_without_dry(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SequenceBreakers, "ids", lambda *_: pytest.fail("nobody asked for it"))  # pyright: ignore[reportUnknownLambdaType]
    assert bench.run().code == 0
    assert Path(bench.root / "run").is_dir()
