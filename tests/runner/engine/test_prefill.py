"""Tests the prefill of a group: chunks within the bound on logits, no logits of a prompt's last token, the echo of each row,
calls that others stand between."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import Sampling
from mlx_bulk.runner.engine.prefill import (
    LEAST_CHUNK,
    ByCalls,
    Prefilled,
    Result,
    compute_prefix,
    prefill,
    prefill_by_calls,
    prefix_by_calls,
)
from mlx_bulk.runner.layers.kv_cache import Caches, evaluate_caches, make_caches
from mlx_bulk.runner.layers.lm_head import Head
from mlx_lm.models.cache import make_prompt_cache

from ..support.naive_truth import log_probabilities
from ..support.tiny import VOCABULARY, build, prompts_of
from ..support.tiny_runs import request, setup_of


class Watched:
    """Notes the shapes of the calls that a model gets."""

    def __init__(self, network: Any):
        self.network, self.layers = network, network.layers
        self.shapes: list[tuple[int, ...]] = []

    def make_cache(self) -> list[Any]:
        return make_prompt_cache(self.network)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        self.shapes.append(tuple(tokens.shape))
        return self.network(tokens, cache=cache)


@pytest.mark.parametrize("width", [2, 3, 9, 10, 11, 40, 60])
def test_chunks_stay_within_the_bound_on_logits_and_none_is_one_token(width: int):
    model, rows = Watched(build("gemma3_text")), 3
    bound = 10 * 4 * rows * VOCABULARY  # ten tokens a row
    prompts = prompts_of((width + 1, max(1, width // 2), 1))
    found = prefill(setup_of(model, tokens=10_000, logit_bytes=bound), [request(i, p, Sampling()) for i, p in enumerate(prompts)])
    assert sum(t for _, t in model.shapes) == width
    assert all(b * t * 4 * VOCABULARY <= bound + 4 * rows * VOCABULARY for b, t in model.shapes)  # a last token joins the chunk before it
    assert all(t > 1 for _, t in model.shapes)
    for prompt, echo in zip(prompts, found.echoes, strict=True):
        assert echo is not None
        truth = log_probabilities(build("gemma3_text"), prompt)[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(echo.logprobs, truth, rtol=0, atol=1e-4)


def test_a_bound_smaller_than_any_chunk_still_makes_progress():
    model = Watched(build("llama"))
    prefill(setup_of(model, tokens=10_000, logit_bytes=1), [request(0, prompts_of((41,))[0], Sampling())])
    assert [t for _, t in model.shapes] == [LEAST_CHUNK] * 5


def test_with_a_separate_head_chunks_are_as_long_as_tokens_allow():
    network = build("gemma3_text")
    prompts, head = prompts_of((41, 30)), Head(network)
    called: list[tuple[int, ...]] = []

    class Noted(Head):
        def states(self, tokens: mx.array, caches: Any) -> mx.array:
            called.append(tuple(tokens.shape))
            return head.states(tokens, caches)

    setup = setup_of(network, tokens=10_000, logit_bytes=1, head=Noted(network))
    found = prefill(setup, [request(i, p, Sampling()) for i, p in enumerate(prompts)])
    assert called == [(2, 40)]
    for prompt, echo in zip(prompts, found.echoes, strict=True):
        assert echo is not None
        truth = log_probabilities(network, prompt)[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(echo.logprobs, truth, rtol=0, atol=1e-4)


def test_without_an_echo_the_tokens_of_a_prefill_are_the_only_bound():
    model = Watched(build("llama"))
    setup = setup_of(model, tokens=60, logit_bytes=1, wanted=LogprobOptions())
    found = prefill(setup, [request(i, p, Sampling()) for i, p in enumerate(prompts_of((41, 30)))])
    assert model.shapes == [(2, 30), (2, 10)]
    assert found.echoes == [None, None]
    assert (found.tokens, found.padded_tokens) == (40 + 29, 2 * 40)


def test_prompts_of_one_token_need_no_call_and_have_an_empty_echo():
    model = Watched(build("llama"))
    found = prefill(
        setup_of(model, wanted=LogprobOptions(echo=True, top=3, stats=True)), [request(0, [5], Sampling()), request(1, [6], Sampling())]
    )
    assert model.shapes == []
    for echo in found.echoes:
        assert echo is not None
        assert echo.logprobs.shape == (0,)
        assert echo.top_ids is not None
        assert echo.top_ids.shape == (0, 3)
        assert echo.ranks is not None
        assert echo.ranks.dtype == np.int32


def test_prompts_of_one_length_go_through_together_where_no_pad_may_and_join():
    model, prompts = Watched(build("mamba")), prompts_of((4, 9, 1, 4, 9))
    asked = [request(i, p, Sampling(), (i, 10 + i) if i == 1 else (i,)) for i, p in enumerate(prompts)]
    found = prefill(setup_of(model, "joined"), asked)
    assert model.shapes == [(2, 8), (2, 3)]
    assert [r.row for r in found.requests] == [1, 4, 0, 3, 2]
    assert [(found.requests[i].row, s.seed) for i, s in found.waiting] == [(1, 1), (1, 11), (4, 4), (0, 0), (3, 3), (2, 2)]
    assert (found.tokens, found.padded_tokens) == (22, 22)
    logits = np.array(build("mamba")(mx.array([[7]] * 5), cache=found.caches)[:, -1])
    for row, echo, next_logits in zip(found.requests, found.echoes, logits, strict=True):
        ids = row.prompt.ids
        assert echo is not None
        truth = np.array(build("mamba")(mx.array([[*ids[:-1].tolist(), 7]]))[0])
        np.testing.assert_allclose(next_logits, truth[-1], rtol=0, atol=1e-4)
        np.testing.assert_allclose(
            echo.logprobs, log_probabilities(build("mamba"), ids.tolist())[np.arange(len(ids) - 1), ids[1:]], rtol=0, atol=1e-4
        )


def test_every_sample_waits_for_a_place():
    found = prefill(setup_of(build("llama")), [request(0, [1, 2], Sampling(), [4, 5]), request(1, [3, 4, 5], Sampling(), [6])])
    assert [(i, s.index, s.seed) for i, s in found.waiting] == [(0, 0, 4), (0, 1, 5), (1, 0, 6)]


# ------------------------------------------------------------------------------------------------------ call by call


def stepped(work: ByCalls[Result], between: Callable[[], object]) -> tuple[list[int], Result]:
    """Makes the calls of ``work`` with ``between`` before each; returns the padded tokens that each announced, and the result."""
    announced: list[int] = []
    while True:
        try:
            announced.append(next(work))
        except StopIteration as end:
            return announced, end.value
        between()


def leaves(caches: Caches) -> list[np.ndarray]:
    """All arrays of the caches, as they stand."""
    return [np.array(leaf) for cache in caches for _, leaf in tree_flatten(cache.state) if isinstance(leaf, mx.array)]


def assert_equal_to_the_bit(one: Prefilled, other: Prefilled, model: Any) -> None:
    assert [r.row for r in one.requests] == [r.row for r in other.requests]
    assert one.waiting == other.waiting
    assert (one.tokens, one.padded_tokens) == (other.tokens, other.padded_tokens)
    for mine, theirs in zip(one.echoes, other.echoes, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            for name in Scores.__slots__:
                np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    for mine, theirs in zip(leaves(one.caches), leaves(other.caches), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    last = mx.array([[int(r.prompt.ids[-1])] for r in one.requests])
    np.testing.assert_array_equal(np.array(model(last, cache=one.caches)), np.array(model(last, cache=other.caches)))


@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize(
    ("name", "way"),
    [("llama", "padded"), ("gemma3_text", "padded"), ("mamba", "joined"), ("lfm2", "joined"), ("gemma2", "padded"), ("gemma2", "exact")],
)
def test_a_prefill_is_the_same_to_the_bit_when_the_model_is_used_between_its_calls(name: str, way: str, echo: bool):
    network = build(name)
    lengths = (21, 21, 21) if way == "exact" else (30, 9, 1, 25, 9)
    asked = [request(i, p, Sampling(), (i, 10 + i) if i == 1 else (i,)) for i, p in enumerate(prompts_of(lengths))]
    setup = setup_of(network, way, tokens=24, wanted=LogprobOptions(echo=echo, top=3 * echo, stats=echo))
    others = setup.network, make_caches(network, 2, padded=way != "exact")

    def used() -> None:
        others[0](mx.array([[5], [6]]), others[1])
        evaluate_caches(others[1])

    announced, found = stepped(prefill_by_calls(setup, asked), used)
    assert len(announced) >= 3
    assert sum(announced) == found.padded_tokens
    assert_equal_to_the_bit(prefill(setup, asked), found, network)


def test_each_call_is_announced_before_it_is_made():
    model = Watched(build("llama"))
    setup, calls = setup_of(model, tokens=60, wanted=LogprobOptions()), list[tuple[int, ...]]()
    announced, _ = stepped(
        prefill_by_calls(setup, [request(i, p, Sampling()) for i, p in enumerate(prompts_of((41, 30)))]), lambda: calls.extend(model.shapes)
    )
    assert announced == [60, 20]
    assert calls == [(2, 30)]  # before the first call there was none


def test_a_prefix_is_the_same_to_the_bit_when_the_model_is_used_between_its_calls():
    setup, ids = setup_of(build("gemma3_text"), tokens=10), np.array(prompts_of((47,))[0], np.int32)
    announced, parent = stepped(prefix_by_calls(setup, ids[:25], None), lambda: build("gemma3_text")(mx.array([[1, 2, 3]])))
    assert announced == [10, 10, 5]
    announced, found = stepped(prefix_by_calls(setup, ids, parent), lambda: None)
    assert announced == [10, 10, 2]
    whole = compute_prefix(setup, ids, compute_prefix(setup, ids[:25], None))
    assert found.echo is not None
    assert whole.echo is not None
    np.testing.assert_array_equal(found.echo.logprobs, whole.echo.logprobs)
    for mine, theirs in zip(leaves(found.caches), leaves(whole.caches), strict=True):
        np.testing.assert_array_equal(mine, theirs)
