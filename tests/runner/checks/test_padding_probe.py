"""Tests that the probe accepts batches that are right, and no others."""

import math
from typing import Any

import mlx.core as mx
import pytest
from mlx_bulk.runner.checks.padding_probe import probe

from ..support.naive_truth import assert_decode_is_echo, assert_greedy_as_alone
from ..support.tiny import JOINED, PADDED, VOCABULARY, as_it_came, build, prompts_of
from ..support.tiny_runs import greedy, run, setup_of


class Mixing:
    """A model that is right for one row alone, and in a batch mixes a little of the other rows into each row."""

    def __init__(self, network: Any, share: float):
        self.network, self.layers, self.share = network, network.layers, share

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits = self.network(tokens, cache=cache)
        return (1 - self.share) * logits + self.share * logits.mean(axis=0, keepdims=True)


class Rounding:
    """A model that rounds otherwise in a batch of other rows."""

    def __init__(self, network: Any, size: float):
        self.network, self.layers, self.size = network, network.layers, size

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits = self.network(tokens, cache=cache)
        return logits + self.size * tokens.shape[0] * mx.sin(mx.arange(logits.shape[-1]))


class Raising:
    """A model that takes one row only."""

    def __init__(self, network: Any):
        self.network, self.layers = network, network.layers

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        if tokens.shape[0] > 1:
            raise ValueError(f"found {tokens.shape[0]} rows\nsecond line")
        return self.network(tokens, cache=cache)


@pytest.mark.parametrize("name", PADDED)
def test_models_that_heed_their_mask_are_padded(name: str):
    found = probe(build(name), VOCABULARY)
    assert (found.way, found.reason) == ("padded", "")
    assert found.difference < 1e-4  # logits of size 10; only the order of float32 sums differs
    assert found.token_bytes + found.row_bytes > 0


@pytest.mark.parametrize(
    ("name", "way", "reason"),
    [("mamba", "joined", "padded batches change logits by"), ("gemma2", "exact", "padded batches crash: [broadcast_shapes]")],
)
def test_models_that_fail_with_pads_get_rows_of_one_length_in_a_prefill_at_least(name: str, way: str, reason: str):
    """mlx-lm's `gemma2`, not mended, crashes on a batch's mask."""
    assert (name in JOINED) == (way == "joined")
    found = probe(as_it_came(name), VOCABULARY)
    assert found.way == way
    assert found.reason.startswith(reason)


@pytest.mark.parametrize("share", [3e-4, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.02, 0.5))])
def test_a_model_that_is_wrong_in_any_batch_runs_rows_alone_and_is_right(share: float):
    network, prompts = Mixing(build("llama"), share), prompts_of((5, 5, 12))
    found = probe(network, VOCABULARY)
    assert (found.way, found.difference) == ("alone", 0.0)
    assert found.reason.startswith("exact batches change logits by")
    outcomes = run(setup_of(network, found.way), greedy(prompts))
    assert_greedy_as_alone(network, prompts, outcomes)
    assert_decode_is_echo(network, prompts, outcomes)


def test_rounding_of_a_device_is_not_taken_for_a_fault():
    assert probe(Rounding(build("llama"), 1e-4), VOCABULARY).way == "padded"
    assert probe(Rounding(build("llama"), 1e-2), VOCABULARY).way == "alone"  # no rounding is as large


def test_a_model_whose_logits_are_not_numbers_is_not_trusted():
    assert probe(Rounding(build("llama"), math.nan), VOCABULARY).way == "alone"


def test_a_model_that_takes_one_row_only_runs_rows_alone():
    found = probe(Raising(build("llama")), VOCABULARY)
    assert found.way == "alone"
    assert found.reason == "exact batches crash: found 2 rows"


class Never:
    """A model with ids that it never gives; ``leak``: but in a batch."""

    def __init__(self, network: Any, leak: bool):
        self.network, self.layers, self.leak = network, network.layers, leak

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        logits = self.network(tokens, cache=cache)
        if not (self.leak and tokens.shape[0] > 1):
            logits[..., 5:9] = -math.inf
        return logits


@pytest.mark.parametrize(("leak", "way"), [(False, "padded"), (True, "alone")])
def test_tokens_of_probability_0_stay_so_in_a_batch(leak: bool, way: str):
    assert probe(Never(build("llama"), leak), VOCABULARY).way == way


def test_a_way_that_is_known_to_be_wrong_is_not_tried():
    assert probe(build("llama"), VOCABULARY, "exact").way == "exact"
    found = probe(build("llama"), VOCABULARY, "alone")
    assert (found.way, found.reason) == ("alone", "")
    assert found.token_bytes > 0
