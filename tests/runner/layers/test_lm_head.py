"""Tests a network cut into body and head: the network's own logits, for chosen positions, with a bound on their number."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import logprobs
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.layers.state_scores import read_scores
from numpy.typing import NDArray

from ..support.tiny import CONFIGS, VOCABULARY, build

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (3, 12))


def whole_logits(network: Any) -> NDArray[np.float32]:
    return np.array(network(mx.array(TOKENS), cache=make_caches(network, 3, padded=False)).astype(mx.float32))


class Counted(Network):
    """Logits of states that are rows of a table, and how many were asked for in each call."""

    def __init__(self, table: NDArray[np.float32]):
        super().__init__(None)
        self.table, self.calls = mx.array(table), list[int]()

    def product(self, states: mx.array) -> None:
        pass

    def logits(self, states: mx.array) -> mx.array:
        self.calls.append(states.shape[0])
        return self.table[states[:, 0].astype(mx.int32)]


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_any_positions_are_the_networks_own(name: str):
    network, at = build(name), [3, 7, 8, 20, 35]
    head = Head(network)
    states = head.states(mx.array(TOKENS), make_caches(network, 3, padded=False))
    assert states.shape == (3, 12, 64)
    found = np.array(head.logits(states.reshape(36, 64)[mx.array(at)]))
    # the same products in another shape; logits of size 10 to 30
    np.testing.assert_allclose(found, whole_logits(network).reshape(36, VOCABULARY)[at], rtol=0, atol=3e-5)


def test_the_networks_own_code_behind_the_body_is_run():
    network = build("gemma2")  # caps its logits at 30
    head = Head(network)
    assert np.abs(np.array(head.logits(1e4 * mx.ones((1, 64))))).max() == pytest.approx(30.0)


def test_a_split_network_stays_whole_itself():
    network = build("llama")
    before = whole_logits(network)
    Head(network).states(mx.array(TOKENS), make_caches(network, 3, padded=False))
    assert isinstance(network.model, nn.Module)
    np.testing.assert_array_equal(whole_logits(network), before)


def test_a_text_model_inside_another_is_split_there():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.language_model = build("llama")

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            return 0.5 * self.language_model(tokens, cache=cache)

    head = Head(Both())
    states = head.states(mx.array(TOKENS), make_caches(build("llama"), 3, padded=False))
    found = np.array(head.logits(states[0]))
    np.testing.assert_allclose(found, 0.5 * whole_logits(build("llama"))[0], rtol=0, atol=3e-5)


def test_no_body_is_an_error_that_names_the_class():
    with pytest.raises(ValueError, match="no body among model, backbone, transformer in Linear"):
        Head(nn.Linear(2, 2))


def test_a_whole_network_reads_its_own_logits():
    network = build("llama")
    whole = Network(network)
    states = whole(mx.array(TOKENS), make_caches(network, 3, padded=False), read="states")
    np.testing.assert_array_equal(np.array(whole.logits(states)), whole_logits(network))


@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_scores_come_in_the_order_asked_for_whatever_the_chunks(rows: int):
    rng = np.random.default_rng(1)
    table = rng.normal(0, 2, (10, 40)).astype(np.float32)
    at, targets = rng.integers(0, 10, 25), rng.integers(0, 40, 25).astype(np.int32)
    reader, states = Counted(table), mx.arange(10)[:, None].astype(mx.float32)
    scores, divergences = read_scores([reader], [states], at, targets, rows, LogprobOptions(top=3, stats=True, greedy=True))
    truth = logprobs.score(mx.array(table[at]), targets, 3, True, True)
    for name in truth.__slots__:
        np.testing.assert_array_equal(getattr(scores, name), getattr(truth, name))
    assert divergences is None
    assert max(reader.calls) <= rows


def test_a_position_with_several_targets_goes_through_the_head_once():
    reader = Counted(np.random.default_rng(1).normal(0, 2, (2, 40)).astype(np.float32))
    at, targets = np.array([0, 1, 0, 0, 1]), np.array([5, 6, 7, 5, 8], np.int32)
    scores, _ = read_scores([reader], [mx.array([[0.0], [1.0]])], at, targets, 100, LogprobOptions())
    assert reader.calls == [2]
    assert scores.logprobs[0] == scores.logprobs[3]


def test_a_second_model_is_compared_with_the_first():
    rng = np.random.default_rng(1)
    first, second = (Counted(rng.normal(0, 2, (10, 40)).astype(np.float32)) for _ in range(2))
    states = mx.arange(10)[:, None].astype(mx.float32)
    at, targets = np.arange(9, -1, -1), rng.integers(0, 40, 10).astype(np.int32)
    scores, found = read_scores([first, second], [states, states], at, targets, 4, LogprobOptions())
    own, same = read_scores([first, first], [states, states], at, targets, 4, LogprobOptions())
    assert found is not None
    assert same is not None
    truth = logprobs.score(second.table[mx.array(at)], targets)
    np.testing.assert_allclose(found.reference_logprobs, truth.logprobs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.delta_ps, np.exp(scores.logprobs) - np.exp(truth.logprobs), rtol=0, atol=1e-6)
    assert found.kls.min() > 0.1
    assert np.abs(same.kls).max() < 1e-6
    assert same.agreements.all()
    np.testing.assert_array_equal(same.reference_logprobs, own.logprobs)  # to the bit: a perplexity ratio of exactly 1
    own, same = read_scores([first, first], [states, states], at, targets, 4, LogprobOptions(stats=True))
    assert same is not None
    np.testing.assert_array_equal(same.reference_logprobs, own.logprobs)
