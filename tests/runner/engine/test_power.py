"""Tests that the assertions of ``naive_truth`` fail on faults: attended pads, dropped context, shifted targets."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.kernels.sampling.draw import Launched, launch
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.engine import decode_batch
from mlx_bulk.runner.layers import state_scores
from mlx_bulk.runner.layers.kv_cache import make_caches
from numpy.typing import NDArray

from ..support.naive_truth import assert_decode_is_echo, assert_echo_is_naive, assert_greedy_as_alone
from ..support.tiny import Ids, Network, build, prompts_of
from ..support.tiny_runs import greedy, run, setup_of

Comparison = Callable[[Network, Sequence[Ids], Sequence[Generated]], None]
COMPARISONS: tuple[Comparison, ...] = (assert_greedy_as_alone, assert_echo_is_naive, assert_decode_is_echo)
PROMPTS = prompts_of((5, 30, 2, 17, 9, 12))


class Wrapped:
    """A model around another one, for a fault in between."""

    def __init__(self, network: Network):
        self.network = network
        self.layers = network.layers


class LeftPadsAttended(Wrapped):
    """Forgets where a row begins: left pads are attended to, and nothing else changes."""

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        kept = [layer.left_padding for layer in cache]
        for layer in cache:
            layer.left_padding = mx.zeros_like(layer.left_padding)
        logits = self.network(tokens, cache=cache)
        for layer, padding in zip(cache, kept, strict=True):
            layer.left_padding = padding
        return logits


class PadsBeforePrompts(Wrapped):
    """Puts three pads before each prompt."""

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        pads = 3 if tokens.shape[1] > 1 else 0
        return self.network(mx.pad(tokens, [(0, 0), (pads, 0)]), cache=cache)[:, pads:]


class ContextDropped(Wrapped):
    """Sees the tokens of one call alone."""

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        for layer, empty in zip(cache, make_caches(self.network, tokens.shape[0], padded=True), strict=True):
            layer.state = empty.state
        return self.network(tokens, cache=cache)


def outcomes(network: Network, tokens: int = 64) -> list[Generated]:
    return run(setup_of(network, tokens=tokens), greedy(PROMPTS))


@pytest.mark.parametrize("assert_agrees", COMPARISONS)
def test_each_comparison_passes_without_a_fault(assert_agrees: Comparison):
    assert_agrees(build("llama"), PROMPTS, outcomes(build("llama")))


@pytest.mark.parametrize("comparison", [assert_greedy_as_alone, assert_decode_is_echo])
def test_left_pads_attended_fail(comparison: Comparison):
    with pytest.raises(AssertionError):
        comparison(build("llama"), PROMPTS, outcomes(LeftPadsAttended(build("llama"))))


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_pads_before_prompts_fail(comparison: Comparison):
    with pytest.raises(AssertionError):
        comparison(build("llama"), PROMPTS, outcomes(PadsBeforePrompts(build("llama"))))


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_context_dropped_fails(comparison: Comparison):
    faulty = outcomes(ContextDropped(build("llama")), tokens=12)  # prefills in chunks: the echo of a later one lacks context
    with pytest.raises(AssertionError):
        comparison(build("llama"), PROMPTS, faulty)


def test_targets_of_the_echo_shifted_by_one_fail(monkeypatch: pytest.MonkeyPatch):
    def shifted(logits: mx.array, targets: NDArray[np.int32], *figures: Any) -> Scores:
        return logprobs.score(logits, np.roll(targets, 1), *figures)

    fused = logprobs.fused  # what reads an echo on the path of Metal and CUDA
    monkeypatch.setattr(state_scores, "score", shifted)
    monkeypatch.setattr(logprobs, "fused", lambda logits, targets: fused(logits, mx.roll(targets, 1)))  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(AssertionError):
        assert_echo_is_naive(build("llama"), PROMPTS, outcomes(build("llama")))


def test_targets_of_decode_shifted_by_a_row_fail(monkeypatch: pytest.MonkeyPatch):
    def shifted(logits: mx.array, parameters: Parameters, top: int, stats: bool, *more: bool) -> Launched:
        launched = launch(logits, parameters, top, stats, *more)
        drawn, _ = launched.read()
        return Launched(launched.ids, lambda: (drawn, logprobs.score(logits[:, -1], np.roll(drawn.ids, 1), top, stats)))

    monkeypatch.setattr(decode_batch, "launch", shifted)
    with pytest.raises(AssertionError):
        assert_decode_is_echo(build("llama"), PROMPTS, outcomes(build("llama")))
