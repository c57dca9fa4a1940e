"""Tests that the comparisons in the scorer's tests fail on each fault that they are for."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import logprobs
from mlx_bulk.runner.core.outcomes import Scored
from mlx_bulk.runner.core.requests import Passage, ScoreRequest
from mlx_bulk.runner.scoring import scorer as scorers
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.naive_truth import assert_scores_are_naive, log_probabilities
from ..support.score_calls import TEXTS, Calls, ragged_choices, setup
from ..support.tiny import build
from ..support.tiny_runs import documents, scored, scored_with, setup_of


def test_a_pad_that_is_attended_to_fails():
    class PadFirst(Calls):
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            return self.model(mx.pad(tokens, [(0, 0), (1, 0)]), cache=cache)[:, 1:]

    with pytest.raises(AssertionError):
        assert_scores_are_naive(build("llama"), documents(TEXTS), scored(setup_of(PadFirst(build("llama")), head=None), documents(TEXTS)))


def test_a_token_of_context_that_is_dropped_fails():
    asked = ragged_choices()
    without = [ScoreRequest(r.row, tuple(Passage(p.ids[1:], p.positions - 1) for p in r.passages)) for r in asked]
    with pytest.raises(AssertionError):
        assert_scores_are_naive(build("llama"), asked, scored(setup("llama"), without))


def test_targets_shifted_by_one_fail(monkeypatch: pytest.MonkeyPatch):
    def shifted(readers: Any, states: Any, at: Any, targets: Any, *more: Any) -> Any:
        return read(readers, states, at, np.roll(targets, 1), *more)

    read = scorers.read_scores
    monkeypatch.setattr(scorers, "read_scores", shifted)
    with pytest.raises(AssertionError):
        assert_scores_are_naive(build("llama"), documents(TEXTS), scored(setup("llama"), documents(TEXTS)))


def test_a_child_on_top_of_another_row_fails(monkeypatch: pytest.MonkeyPatch):
    def reversed_rows(window: Any, children: Any, caches: Any) -> Any:
        caches.reorder(list(range(caches.rows))[::-1])
        return in_turns(work, window, children, caches)

    work, in_turns = Scorer(setup("llama", rows=8)), Scorer._score_turns  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(work, "_score_turns", reversed_rows)
    asked = ragged_choices()
    outcomes = [o for o in scored_with(work, asked) if isinstance(o, Scored)]
    with pytest.raises(AssertionError):
        assert_scores_are_naive(build("llama"), asked, outcomes)


def test_the_naive_truth_is_that_of_the_kernel():
    ids = TEXTS[1]
    logits = build("llama")(mx.array([ids]))[0, :-1]
    truth = log_probabilities(build("llama"), ids)[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(logprobs.score(logits, np.array(ids[1:], np.int32)).logprobs, truth, rtol=0, atol=1e-5)
