"""Tests outcomes of the scorer: failures of single rows, a reference model, progress, stops, and the bound on logits."""

import tracemalloc
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import backend
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Scored
from mlx_bulk.runner.core.requests import ScoreRequest
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.naive_truth import assert_scores_are_naive, log_probabilities
from ..support.score_calls import TEXTS, Calls, ragged_choices, setup
from ..support.tiny import VOCABULARY, Chain, build, prompts_of, random_chain
from ..support.tiny_runs import documents, passage, scored, scored_with, setup_of


def test_a_row_that_is_not_a_number_fails_alone_and_says_where():
    table = random_chain(20).table
    table[7] = mx.nan
    asked = [*documents([[1, 2, 3], [4, 7, 5, 6]]), ScoreRequest(2, (passage([1, 2]), passage([3, 4, 7, 1])))]
    outcomes = scored_with(Scorer(setup_of(Chain(np.array(table)))), asked)
    assert isinstance(outcomes[0], Scored)
    assert [(o.row, o.sample, o.stage, o.error) for o in outcomes if isinstance(o, Failure)] == [
        (1, 0, "score", "NotANumber"),
        (2, 0, "score", "NotANumber"),
    ]
    assert [o.message for o in outcomes if isinstance(o, Failure)] == [
        "passage 0, token 2: the model's logits there are NaN or all -inf",
        "passage 1, token 3: the model's logits there are NaN or all -inf",
    ]


def test_no_chance_at_all_stays_minus_infinity():
    table = random_chain(20).table
    table[3, 4] = -mx.inf
    (outcome,) = scored(setup_of(Chain(np.array(table))), documents([[3, 4, 5]]))
    assert outcome.scores[0].logprobs[0] == -np.inf
    assert np.isfinite(outcome.scores[0].logprobs[1])


def test_a_reference_that_is_not_a_number_fails_the_row():
    good = random_chain(20)
    table = np.array(good.table)
    table[2] = np.nan
    outcomes = scored_with(Scorer(setup_of(good), setup_of(Chain(table))), documents([[1, 2, 3], [4, 5]]))
    assert [type(o) for o in outcomes] == [Failure, Scored]
    assert isinstance(outcomes[0], Failure)
    assert "the reference model's" in outcomes[0].message


def test_a_reference_of_another_family_is_fed_the_same_rows():
    asked = ragged_choices()
    outcomes = scored(setup("llama"), asked, setup("mamba2"))
    assert_scores_are_naive(build("llama"), asked, outcomes)
    for request, outcome in zip(asked, outcomes, strict=True):
        assert outcome.divergences is not None
        for part, scores, found in zip(request.passages, outcome.scores, outcome.divergences, strict=True):
            ids, at = part.ids.tolist(), part.positions - 1
            mine, theirs = (log_probabilities(build(name), ids)[at] for name in ("llama", "mamba2"))
            targets = part.ids[part.positions]
            np.testing.assert_allclose(found.reference_logprobs, theirs[np.arange(len(at)), targets], rtol=0, atol=1e-4)
            np.testing.assert_allclose(found.kls, (np.exp(theirs) * (theirs - mine)).sum(axis=-1), rtol=0, atol=1e-3)  # of 5 or so
            np.testing.assert_allclose(found.delta_ps, np.exp(scores.logprobs) - np.exp(found.reference_logprobs), rtol=0, atol=1e-6)
            np.testing.assert_array_equal(found.agreements, mine.argmax(axis=-1) == theirs.argmax(axis=-1))


@pytest.mark.parametrize(("mine", "theirs"), [(24, 20), (20, 24)])
def test_ids_that_one_model_lacks_are_left_out_of_the_divergence(mine: int, theirs: int):
    tables = {width: random_chain(width, seed=width).table for width in (mine, theirs)}
    asked = documents([[3, 4, 19, 5], [6, 7]])
    found = scored(setup_of(Chain(np.array(tables[mine]))), asked, setup_of(Chain(np.array(tables[theirs]))))
    alike = scored(setup_of(Chain(np.array(tables[mine])[:, :20])), asked, setup_of(Chain(np.array(tables[theirs])[:, :20])))
    alone = scored(setup_of(Chain(np.array(tables[mine]))), asked)
    for one, other, only in zip(found, alike, alone, strict=True):
        assert one.divergences is not None
        assert other.divergences is not None
        for field in ("kls", "delta_ps", "agreements", "reference_logprobs"):
            np.testing.assert_array_equal(getattr(one.divergences[0], field), getattr(other.divergences[0], field))
        np.testing.assert_array_equal(one.scores[0].logprobs, only.scores[0].logprobs)


def test_a_model_held_against_itself_does_not_differ():
    outcomes = scored(setup("llama"), documents(TEXTS), setup("llama"))
    assert all(
        o.divergences is not None and np.abs(o.divergences[0].kls).max() < 1e-5 and o.divergences[0].agreements.all() for o in outcomes
    )


def test_ways_that_one_of_two_models_forbids_are_not_taken():
    of = setup_of(Calls(build("llama")), shared_passages=False, head=None)
    work = Scorer(setup("llama"), of)
    scored_with(work, ragged_choices())
    assert work.progress.prefilled > 800  # of 1,000 or so: each choice of several tokens is fed with its prompt


def test_progress_counts_what_was_fed():
    work = Scorer(setup("llama", rows=2, tokens=1000))
    outcomes = scored_with(work, documents(prompts_of((11, 6, 4))))
    assert len(outcomes) == 3
    p = work.progress
    assert (p.prompt, p.prefilled, p.padded, p.scored) == (21, 18, 2 * 10 + 3, 18)


def test_logits_of_many_tokens_stay_within_the_bound():
    """V = 152,000: 512 tokens' logits would take 311 MB at once. The bound does not depend on their number."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Embedding(152_000, 8)
            self.lm_head = nn.Linear(8, 152_000)

        def make_cache(self) -> list[Any]:
            return []

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            return self.lm_head(self.model(tokens))

    network = Wide()
    mx.eval(network.parameters())
    asked = documents(np.random.default_rng(0).integers(0, 152_000, (4, 129)).tolist())
    work = Scorer(replace(setup_of(network, tokens=4096, wanted=LogprobOptions(echo=True, top=5)), vocabulary=152_000))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tracemalloc.start()
    assert len(scored_with(work, asked)) == 4
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Elsewhere mlx holds the temporaries of all queued operations: 11 arrays of a chunk's logits; for all tokens at once 11 x 311 MB.
    bound = 256 << 20 if backend.on_cpu_path() else 1 << 30
    assert mx.get_peak_memory() - before + numpy_peak < bound


def test_two_models_logits_stand_within_the_bound_of_one():
    class Counting(Head):
        rows = 0

        def logits(self, states: mx.array) -> mx.array:
            self.rows = max(self.rows, len(states))
            return super().logits(states)

    asked, heads = documents(prompts_of((120, 110, 100))), [Counting(build("llama")) for _ in range(3)]
    alone, mine, reference = (setup_of(build("llama"), tokens=4096, head=head, logit_bytes=4 * VOCABULARY * 100) for head in heads)
    scored(alone, asked)
    scored(mine, asked, reference)
    assert [head.rows for head in heads] == [96, 32, 32]  # 327 positions in chunks of whole tiles of 32, of at most 100, or 50


def test_a_network_that_is_not_split_is_called_for_as_many_tokens_as_the_bound_allows():
    network = Calls(build("llama"))
    of = setup_of(network, tokens=10_000, head=None, logit_bytes=4 * VOCABULARY * 60)
    asked = documents(prompts_of((41, 40, 39)))
    assert_scores_are_naive(build("llama"), asked, scored(of, asked))
    assert network.shapes == [(3, 20), (3, 20)]


def test_outcomes_come_as_soon_as_their_batch_is_done_and_a_stop_ends_the_rest():
    work = Scorer(setup("llama", rows=1))
    windows, seen = iter([documents(TEXTS)]), list[int]()
    for outcome in work.run(lambda wait: next(windows, None), lambda: len(seen) >= 2):
        seen.append(outcome.row)
    lengths = [len(t) for t in TEXTS]
    assert [lengths[row] for row in seen] == sorted(lengths, reverse=True)[:2]


def test_windows_follow_each_other():
    windows = iter([documents(TEXTS[:2]), [], documents(TEXTS[2:4])])
    outcomes = list(Scorer(setup("llama")).run(lambda wait: next(windows, None)))
    assert sorted(o.row for o in outcomes) == [0, 0, 1, 1]
