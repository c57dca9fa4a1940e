"""Tests an LM head that is one product: it is scored without logits. Heads that do more are not taken for one."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import fused_logprobs, native
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.layers.state_scores import score_logits, score_product
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers
from numpy.typing import NDArray

from ..support import kernel_models, tiny, tiny_runs
from ..support.score_calls import TEXTS, setup
from ..support.tiny_runs import documents

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

STATES = np.random.default_rng(0).normal(0, 1, (5, 64)).astype(np.float32)


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    with kernel_models.originals():
        yield


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])  # gemma2 caps its logits
def test_what_is_named_is_the_logits_product(name: str):
    head = Head(kernel_models.put(name))
    found = head.product(mx.array(STATES))
    assert found is not None
    assert found.x.shape == (5, 64)
    assert found.cap == (30.0 if name == "gemma2" else 0.0)
    np.testing.assert_allclose(np.array(found.logits()), np.array(head.logits(mx.array(STATES))), rtol=0, atol=3e-5)


def test_layers_of_mlx_name_nothing():
    assert Head(tiny.build("llama")).product(mx.array(STATES)) is None


def test_logits_that_stand_before_are_no_product():
    assert Network(kernel_models.put("llama")).product(mx.zeros((5, tiny.VOCABULARY))) is None


class Biased(nn.Module):
    """A body, and a head with a bias; ``more`` happens to its logits."""

    def __init__(self, more: Callable[[mx.array], mx.array]):
        super().__init__()
        mx.random.seed(0)
        self.model, self.lm_head, self.more = nn.Linear(64, 64), nn.Linear(64, 300), more
        self.lm_head.bias = mx.arange(300) / 100
        patch_layers(self)
        self.eval()

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self.more(self.lm_head(self.model(tokens)))


def test_the_product_holds_the_bias():
    network = Biased(lambda logits: logits)
    found = Head(network).product(mx.array(STATES))
    assert found is not None
    assert found.bias is network.lm_head.bias


def capped_in_place(logits: mx.array) -> mx.array:
    logits[...] = mx.tanh(logits / 30) * 30
    return logits


def test_a_cap_is_seen_where_the_first_logits_are_small():
    network = Biased(capped_in_place)
    network.lm_head.bias = mx.zeros(300)
    found = Head(network).product(mx.array(1e-3 * STATES))
    assert found is not None
    assert found.cap == 30.0


@pytest.mark.parametrize(("scale", "cap"), [(0.25, 0.0), (3.0, 0.0), (1 / 7, 20.0), (-2.0, 0.0)])
def test_logits_may_be_scaled_and_capped(scale: float, cap: float):
    network = Biased(lambda logits: cap * mx.tanh(scale * logits / cap) if cap else scale * logits)
    network.lm_head.bias = (1e-4 if cap else 1.0) * network.lm_head.bias
    states, head = mx.array(3 * STATES), Head(network)
    found = head.product(states)
    assert found is not None
    assert head.product(mx.array(STATES)).cap == found.cap == cap  # pyright: ignore[reportOptionalMemberAccess]
    np.testing.assert_allclose(np.array(found.logits()), np.array(head.logits(states)), rtol=2e-6, atol=5e-6)


def masked_in_place(logits: mx.array) -> mx.array:
    logits[..., mx.array([3, 299])] = -mx.inf
    return logits


@pytest.mark.parametrize("more", [masked_in_place, lambda logits: logits[..., ::-1], lambda logits: mx.minimum(logits, 9)])
def test_logits_to_which_more_happens_are_no_product(more: Callable[[mx.array], mx.array]):
    assert Head(Biased(more)).product(mx.array(STATES)) is None


def test_a_state_of_nan_says_nothing_of_the_next():
    head = Head(Biased(lambda logits: logits))
    assert head.product(mx.full((2, 64), mx.nan)) is None
    assert head.product(mx.array(STATES)) is not None


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (LogprobOptions(), True),
        (LogprobOptions(greedy=True), True),
        (LogprobOptions(temperature=1.0), True),
        (LogprobOptions(temperature=0.7), False),
        (LogprobOptions(top=2), False),
        (LogprobOptions(stats=True), False),
    ],
)
def test_figures_that_need_all_logits_get_them(wanted: LogprobOptions, taken: bool):
    product = Head(kernel_models.put("llama")).product(mx.array(STATES))
    assert product is not None
    targets = np.arange(5, dtype=np.int32)
    found = score_product(wanted, product, np.ones(5, np.intp), targets)
    if not taken:
        assert found is None
        return
    assert found is not None
    truth = score_logits(wanted, fused_logprobs.linear.on_cpu(product.x, product.weight), targets)
    for name in Scores.__slots__:
        np.testing.assert_array_equal(getattr(found, name), getattr(truth, name))


# ------------------------------------------------------------------------------------------------------- through the scorer


def scored(of: Setup) -> list[NDArray[np.float32]]:
    return [outcome.scores[0].logprobs for outcome in tiny_runs.scored(of, documents(TEXTS))]


@pytest.mark.parametrize("static", [False, True])
def test_documents_are_scored_without_logits(static: bool, monkeypatch: pytest.MonkeyPatch):
    truth = scored(setup("llama"))
    network = kernel_models.put("llama")
    right, seen = Head.logits, list[int]()
    monkeypatch.setattr(Head, "logits", lambda self, states: seen.append(states.shape[0]) or right(self, states))
    for ours, theirs in zip(scored(setup("llama", static=static, head=Head(network))), truth, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert seen == [4]  # the trial's states
