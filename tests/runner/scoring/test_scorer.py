"""Tests that the scorer gives each token its logprob after all tokens before it, however rows are batched, cut and shared."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Scored
from mlx_bulk.runner.core.requests import Passage, ScoreRequest
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.naive_truth import assert_scores_are_naive, log_probabilities
from ..support.score_calls import TEXTS, Calls, ragged_choices, setup
from ..support.tiny import CONFIGS, VOCABULARY, Chain, build, prompts_of, random_chain
from ..support.tiny_runs import documents, passage, scored, scored_with, setup_of

QUICK = ("llama", "gemma3_text", "mixtral", "mamba2")  # a model of each kind of cache, and one with experts
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CONFIGS]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_ragged_documents_score_as_in_a_full_forward(name: str, split: bool):
    asked = documents(TEXTS)
    of = setup(name, rows=4, tokens=128, logit_bytes=20 * 4 * VOCABULARY)
    assert_scores_are_naive(build(name), asked, scored(of if split else replace(of, head=None), asked))


@pytest.mark.parametrize("name", NAMES)
def test_prompts_that_share_examples_and_choices_that_share_prompts_score_as_in_full_forwards(name: str):
    asked = ragged_choices()
    work = Scorer(setup(name, rows=8, tokens=128))
    outcomes = [o for o in scored_with(work, asked) if isinstance(o, Scored)]
    assert_scores_are_naive(build(name), asked, outcomes)
    assert work.progress.prefilled < 0.25 * sum(len(p.ids) for r in asked for p in r.passages)  # shared indeed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [2, 7, 10])
def test_a_document_longer_than_a_call_goes_in_chunks_over_one_cache(name: str, tokens: int):
    asked = documents(prompts_of((41, 30)))
    assert_scores_are_naive(build(name), asked, scored(setup(name, tokens=tokens), asked))


@pytest.mark.parametrize("name", ["llama", "lfm2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3_text", "mamba"))])
def test_rows_and_budgets_change_nothing(name: str):
    asked = documents(TEXTS) + [replace(r, row=r.row + len(TEXTS)) for r in ragged_choices()]
    runs = [scored(setup(name, rows=rows, tokens=tokens), asked) for rows, tokens in ((1, 4096), (4, 64), (32, 4096))]
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            for x, y in zip(a.scores, b.scores, strict=True):
                np.testing.assert_allclose(x.logprobs, y.logprobs, rtol=0, atol=1e-4)


def test_only_the_positions_asked_for_are_scored():
    ids = np.array(prompts_of((30,))[0], np.int32)
    asked = [ScoreRequest(0, (Passage(ids, np.array([3, 4, 17], np.int32)), Passage(ids, np.array([29], np.int32))))]
    outcomes = scored(setup("llama"), asked)
    assert [len(s.logprobs) for s in outcomes[0].scores] == [3, 1]
    assert_scores_are_naive(build("llama"), asked, outcomes)


def test_one_fed_token_is_enough():
    asked = documents(prompts_of((2, 2, 2)))
    assert_scores_are_naive(build("gemma3_text"), asked, scored(setup("gemma3_text"), asked))


def test_duplicates_are_fed_once_and_each_gets_its_scores():
    text = prompts_of((30,))[0]
    asked = documents([text] * 5)
    work = Scorer(setup("llama"))
    outcomes = [o for o in scored_with(work, asked) if isinstance(o, Scored)]
    assert (len(outcomes), work.progress.prefilled, work.progress.scored) == (5, 29, 5 * 29)
    assert len({o.scores[0].logprobs.tobytes() for o in outcomes}) == 1


def test_nothing_to_score_is_an_outcome_without_scores():
    asked = [ScoreRequest(0, ()), ScoreRequest(1, (Passage(np.array([5], np.int32), np.zeros(0, np.int32)),))]
    first, second = scored(setup("llama", wanted=LogprobOptions(echo=True, top=2, stats=True, greedy=True)), asked)
    assert first.scores == ()
    found = [getattr(second.scores[0], name) for name in second.scores[0].__slots__ if name != "tempered"]
    assert [figures.shape[0] for figures in found] == [0] * 6


def test_all_figures_wanted_are_there():
    asked = documents(TEXTS[:3])
    outcomes = scored(setup("llama", wanted=LogprobOptions(echo=True, top=3, stats=True, greedy=True)), asked)
    for text, outcome in zip(TEXTS, outcomes, strict=False):
        truth = log_probabilities(build("llama"), text)[:-1]
        (scores,) = outcome.scores
        assert scores.top_ids is not None
        assert scores.greedy is not None
        np.testing.assert_array_equal(scores.top_ids[:, 0], truth.argmax(axis=-1))
        np.testing.assert_array_equal(scores.greedy, truth.argmax(axis=-1) == text[1:])
        assert scores.ranks is not None
        np.testing.assert_array_equal(scores.ranks, 1 + (truth > truth[np.arange(len(truth)), text[1:]][:, None]).sum(axis=-1))


@pytest.mark.parametrize("way", ["right_padded", "alone"])
def test_where_pads_are_wrong_rows_of_one_length_share_a_batch(way: str):
    network = Calls(build("llama"))
    of = setup_of(network, "exact" if way == "right_padded" else "padded", right_padded=False, shared_passages=False, head=None)
    asked = documents(prompts_of((9, 12, 9, 9)))
    assert_scores_are_naive(build("llama"), asked, scored(of, asked))
    assert network.shapes == ([(1, 11), (3, 8)] if way == "right_padded" else [(1, 11), (1, 8), (1, 8), (1, 8)])


def test_uniform_logits_give_every_token_one_in_v():
    outcomes = scored(setup_of(Chain(np.zeros((50, 50), np.float32))), documents([[1, 2, 3], [4, 5]]))
    found = np.concatenate([o.scores[0].logprobs for o in outcomes])
    np.testing.assert_allclose(found, -np.log(50), rtol=1e-6)


def test_a_bigram_model_gives_its_own_table():
    chain = random_chain(20)
    table = np.array(nn.log_softmax(chain.table))
    texts = [[3, 7, 7, 1], [19, 0, 5], [3, 7, 7, 2]]
    for text, outcome in zip(texts, scored(setup_of(chain), documents(texts)), strict=True):
        np.testing.assert_allclose(outcome.scores[0].logprobs, table[text[:-1], text[1:]], rtol=0, atol=1e-6)


def test_each_token_sees_all_that_stand_before_it():
    """The model's logprob of token 0 is minus the number of real tokens it has seen (pads are 0, real tokens are not)."""

    class Counter:
        vocabulary = 2

        def make_cache(self) -> list[Any]:
            return []

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            seen = mx.cumsum((tokens != 0).astype(mx.float32), axis=1)
            return mx.stack([-seen, mx.log1p(-mx.exp(-seen))], axis=-1)

    texts = [[1] * n + [0] for n in (1, 5, 3)]
    outcomes = scored(setup_of(Counter(), shared_passages=False), [ScoreRequest(i, (passage(t, len(t) - 1),)) for i, t in enumerate(texts)])
    np.testing.assert_allclose([o.scores[0].logprobs[0] for o in outcomes], [-1, -5, -3], rtol=1e-6)
