"""Tests the checks of pooling models: how texts may share a batch on their own weights, and whether a slot shows in the bits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.runner.checks.pooling_check import find_text_batching, fixed_slots_alike
from mlx_bulk.runner.pooling.head_network import head_network
from mlx_bulk.runner.pooling.spec import ClassifierHead, EmbeddingHead, HeadLinear, PoolingSpec
from mlx_bulk.runner.pooling.vectors import PoolingNetwork
from mlx_bulk.runner.scheduler.limits import Limits

from ...encoder_checkpoints import TINY_ENCODERS
from ..support.encoder_calls import opened
from ..support.pooling_models import SPEC, WordTable, tiny_embedder
from ..support.tiny import VOCABULARY

LIMITS = Limits(24, 4096, 1e12, 1.0, 0.0)
PLENTY = 1 << 30
UNIT = PoolingSpec(EmbeddingHead(("mean",), normalize=True), 32)
ONE = PoolingSpec(ClassifierHead("last", (HeadLinear("score", 1, 1, False),)), 1)


class Faulty:
    """A pooling network in whose batches something is wrong: ``change`` of (vectors [B, D], lengths, width) returns other vectors."""

    def __init__(self, network: Any, change: Any):
        self.network, self.change = network, change

    def parameters(self) -> Any:
        return self.network.parameters()

    def __call__(self, tokens: mx.array, lengths: Sequence[int]) -> mx.array:
        return self.change(self.network(tokens, lengths), list(lengths), tokens.shape[1])


def pads_count(vectors: mx.array, lengths: list[int], width: int) -> mx.array:
    return vectors * (1 + 1e-3 * (width - mx.array(lengths)))[:, None]


def rows_mix(vectors: mx.array, lengths: list[int], width: int) -> mx.array:
    return vectors if len(lengths) == 1 else vectors + 1e-3 * vectors.mean(axis=0)


def crashes(vectors: mx.array, lengths: list[int], width: int) -> mx.array:
    if min(lengths) < width:
        raise ValueError("[broadcast_shapes] Shapes cannot be broadcast.")
    return vectors


def rounds(vectors: mx.array, lengths: list[int], width: int) -> mx.array:
    """As a half-precision product does in a batch."""
    return vectors * (1 + (2.0**-9 if len(lengths) > 1 else 0.0))


@pytest.mark.parametrize("name", TINY_ENCODERS)
def test_right_encoders_take_padded_batches(name: str, tmp_path: Path):
    body = opened(TINY_ENCODERS[name](tmp_path / name))
    found = find_text_batching(PoolingNetwork(body, head_network(UNIT, body)), 320, UNIT)
    assert (found.way, found.reason) == ("padded", "")
    assert found.difference <= found.allowed == pytest.approx(1e-5)  # of a unit vector


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_right_decoders_take_padded_batches(name: str):
    assert find_text_batching(tiny_embedder(name, "lasttoken"), VOCABULARY, SPEC).way == "padded"


def test_an_unnormalised_vector_is_judged_by_its_length():
    network = WordTable()
    found = find_text_batching(network, VOCABULARY, SPEC)
    assert found.way == "padded"
    assert found.allowed > 1e-4
    assert find_text_batching(Faulty(network, pads_count), VOCABULARY, SPEC).way == "exact"


@pytest.mark.parametrize(
    ("change", "way", "reason"),
    [
        (pads_count, "exact", "padded batches change vectors by"),
        (crashes, "exact", "padded batches crash: [broadcast_shapes]"),
        (rows_mix, "alone", "padded batches change vectors by"),
    ],
)
def test_a_faulty_batch_is_not_taken(change: Any, way: str, reason: str):
    found = find_text_batching(Faulty(tiny_embedder(), change), VOCABULARY, SPEC)
    assert found.way == way
    assert found.reason.startswith(reason)


class OneLabel(WordTable):
    """Logits of one label, which are all about as small as ``size``."""

    def __init__(self, size: float, dtype: mx.Dtype = mx.float32):
        super().__init__(dtype=dtype)
        self.size = size

    def __call__(self, *given: Any) -> mx.array:
        return self.size + 1e-3 * mx.tanh(super().__call__(*given)[:, :1])


@pytest.mark.parametrize("size", [0.001, 1.0, 20.0])
def test_logits_keep_to_the_promise_for_logits(size: float):
    """1e-4 each, however large or alike they are."""
    assert find_text_batching(OneLabel(size), VOCABULARY, ONE).way == "padded"
    for way, step in (("padded", 5e-5), ("exact", 2e-4)):

        def off(vectors: mx.array, lengths: list[int], width: int, step: float = step) -> mx.array:
            return vectors + step * (mx.array(lengths) < width)[:, None]

        assert find_text_batching(Faulty(OneLabel(size), off), VOCABULARY, ONE).way == way


def test_half_precision_is_judged_by_its_rounding():
    assert find_text_batching(Faulty(WordTable(dtype=mx.bfloat16), rounds), VOCABULARY, SPEC).way == "padded"
    assert find_text_batching(Faulty(WordTable(), rounds), VOCABULARY, SPEC).way == "alone"


def test_vectors_that_are_not_finite_allow_no_batch():
    found = find_text_batching(Faulty(WordTable(), lambda v, n, w: v * mx.nan), VOCABULARY, SPEC)
    assert (found.way, found.reason) == ("alone", "vectors of random tokens hold NaN or infinity")


def slot_shows(vectors: mx.array, lengths: list[int], width: int) -> mx.array:
    return vectors * (1 + 1e-6 * (mx.arange(len(lengths)) > 1))[:, None]


def pads_show(vectors: mx.array, lengths: list[int], width: int) -> mx.array:
    """As where a batch without pads takes another kernel."""
    return vectors * (1 + 1e-6 * (min(lengths) < width))


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 24])
def test_slots_that_show_are_found(rows: int, equal: bool):
    limits = replace(LIMITS, rows=rows, equal_lengths=equal)
    network = WordTable()
    assert fixed_slots_alike(network, VOCABULARY, limits, PLENTY)
    assert fixed_slots_alike(Faulty(network, slot_shows), VOCABULARY, limits, PLENTY) == (rows < 3)
    assert fixed_slots_alike(Faulty(network, rows_mix), VOCABULARY, limits, PLENTY) == (rows < 2)
    assert fixed_slots_alike(Faulty(network, pads_show), VOCABULARY, limits, PLENTY) == (rows < 2 or equal)
