"""Tests the prefill of a group: chunks within the bound on logits, no logits of a prompt's last token, the echo of each row."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.requests import Sampling
from mlx_bulk.runner.engine.prefill import LEAST_CHUNK, prefill
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
