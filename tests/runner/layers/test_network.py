"""Tests a network's call: our layers see all its arguments during the call, and nothing of them afterwards."""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import backend
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers.call_context import context_of, share_context
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers, unpatch_layers

from ..support.tiny import VOCABULARY, build

TOKENS = mx.array(np.random.default_rng(0).integers(0, VOCABULARY, (2, 5)))


class Noting(nn.Module):
    """A network that notes what its layers can see of each call. It fails where ``broken``."""

    def __init__(self, broken: bool = False):
        super().__init__()
        self.layer, self.broken, self.seen = nn.Linear(4, 4), broken, list[tuple[Any, bool]]()
        patch_layers(self)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        context = context_of(self.layer)
        self.seen.append((None if context.lengths is None else context.lengths.tolist(), context.reads_logits))
        if self.broken:
            raise RuntimeError("broken")
        return mx.zeros((*tokens.shape, 4))


def test_layers_see_a_calls_lengths_and_what_is_read():
    model = Noting()
    network = Network(model)
    network(TOKENS, None, lengths=[7, -1])
    network(TOKENS, None, read="states")
    network(TOKENS, None, lengths=[2, 5], read="nothing")
    assert model.seen == [([5, 0], True), (None, False), ([2, 5], False)]


def test_nothing_is_left_of_a_call_that_fails():
    model = Noting(broken=True)
    with pytest.raises(RuntimeError, match="broken"):
        Network(model)(TOKENS, None, lengths=[1, 2])
    context = context_of(model)
    assert context.lengths is None
    assert not context.reads_logits


def test_each_network_has_calls_of_its_own():
    first, second = Noting(), Noting()
    twin = copy.deepcopy(first)
    contexts = [context_of(model) for model in (first, second, twin)]
    assert len({id(context) for context in contexts}) == 3
    assert all(context_of(model.layer) is context for model, context in zip((first, second, twin), contexts, strict=True))
    unpatch_layers(first)
    assert context_of(first) is not contexts[0]


@pytest.mark.parametrize("ours", [True, False])
def test_the_blas_has_one_thread_in_a_call_of_our_kernels_and_all_after_it(monkeypatch: pytest.MonkeyPatch, ours: bool):
    threads = [4]

    @contextmanager
    def one() -> Generator[None]:
        threads[0] = 1
        try:
            yield
        finally:
            threads[0] = 4

    class Failing(nn.Module):
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            seen.append(threads[0])
            raise ValueError

    monkeypatch.setattr(backend, "one_blas_thread", one)
    seen, model = list[int](), Failing()
    share_context(model, [])
    context_of(model).multiplies = ours
    with pytest.raises(ValueError):  # noqa: PT011
        Network(model)(TOKENS, None)
    assert (seen, threads) == ([1 if ours else 4], [4])


def test_a_call_of_which_nothing_is_read_fills_the_caches():
    model = build("llama")
    read, unread = (make_caches(model, 2, padded=False) for _ in range(2))
    logits = Network(model)(TOKENS, read)
    assert Network(model)(TOKENS, unread, read="nothing") is None
    for a, b in zip(read, unread, strict=True):
        assert mx.array_equal(a.state[0], b.state[0])
    assert logits.shape == (2, 5, VOCABULARY)


@pytest.mark.parametrize("split", [False, True])
def test_logits_of_states_are_the_logits(split: bool):
    model = build("llama")
    network = Network(model, Head(model) if split else None)
    states = network(TOKENS, make_caches(model, 2, padded=False), read="states")
    logits = network.logits(states.reshape(10, -1)).reshape(2, 5, VOCABULARY)
    np.testing.assert_allclose(np.array(logits), np.array(network(TOKENS, make_caches(model, 2, padded=False))), rtol=0, atol=3e-5)
