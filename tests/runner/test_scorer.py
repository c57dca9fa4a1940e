"""The scorer gives each token its logprob behind all that stands before it, however rows are batched, cut and shared."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.kernels import logprobs
from mlx_bulk.runner import scorer as scorers
from mlx_bulk.runner.prefill import Setup, Wanted
from mlx_bulk.runner.records import Failure, Passage, Scored, ScoreRequest
from mlx_bulk.runner.scorer import Scorer

from .tiny import (
    CONFIGS,
    EXACT,
    LENGTHS,
    VOCABULARY,
    Chain,
    Network,
    assert_scores_are_naive,
    build,
    documents,
    log_probabilities,
    multiple_choice,
    passage,
    prompts_of,
    random_chain,
    scored,
    scored_with,
    setup_of,
)

TEXTS = prompts_of([n for n in LENGTHS if n > 1])


def ragged_choices() -> list[ScoreRequest]:
    """Prompts of unlike lengths behind few-shot examples (two kinds), each with choices of unlike lengths, some of one token."""
    shots, prompts = prompts_of((40, 45)), prompts_of((20, 26, 3, 21, 22, 30), seed=1)
    choices = [prompts_of((3, 1, 5, 2), seed=2 + i) for i in range(5)] + [prompts_of((1, 1, 1), seed=9)]
    return multiple_choice([shots[i % 2] + p for i, p in enumerate(prompts)], choices)


def setup(name: str, **more: Any) -> Setup:
    return setup_of(build(name), "exact" if name in EXACT else "padded", **more)


def as_bytes(outcomes: Sequence[Scored]) -> list[list[bytes]]:
    return [[getattr(s, field).tobytes() for s in o.scores for field in s.__slots__ if getattr(s, field) is not None] for o in outcomes]


class Calls(nn.Module):
    """A model that notes the shapes it is called with."""

    def __init__(self, network: Network):
        super().__init__()
        self.model, self.layers = network, network.layers
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.shapes.append(tuple(tokens.shape))
        return self.model(tokens, cache=cache)


# ------------------------------------------------------------------------------------------------------------ right


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_documents_score_as_in_a_full_forward(name: str, split: bool):
    asked = documents(TEXTS)
    of = setup(name, rows=4, tokens=128, logit_bytes=20 * 4 * VOCABULARY)
    assert_scores_are_naive(build(name), asked, scored(of if split else replace(of, head=None), asked))


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_that_share_examples_and_choices_that_share_prompts_score_as_in_full_forwards(name: str):
    asked = ragged_choices()
    work = Scorer(setup(name, rows=8, tokens=128))
    outcomes = [o for o in scored_with(work, asked) if isinstance(o, Scored)]
    assert_scores_are_naive(build(name), asked, outcomes)
    assert work.progress.prefilled < 0.25 * sum(len(p.ids) for r in asked for p in r.passages)  # shared indeed


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tokens", [2, 7, 10])
def test_a_document_longer_than_a_call_goes_in_chunks_over_one_cache(name: str, tokens: int):
    asked = documents(prompts_of((41, 30)))
    assert_scores_are_naive(build(name), asked, scored(setup(name, tokens=tokens), asked))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba", "lfm2"])
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
    first, second = scored(setup("llama", wanted=Wanted(echo=True, top=2, stats=True, greedy=True)), asked)
    assert first.scores == ()
    assert [getattr(second.scores[0], name).shape[0] for name in second.scores[0].__slots__] == [0] * 6


def test_all_figures_wanted_are_there():
    asked = documents(TEXTS[:3])
    outcomes = scored(setup("llama", wanted=Wanted(echo=True, top=3, stats=True, greedy=True)), asked)
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
def test_where_pads_are_not_to_be_trusted_rows_of_one_length_stand_together_or_rows_alone(way: str):
    network = Calls(build("llama"))
    of = setup_of(network, "exact" if way == "right_padded" else "padded", right_padded=False, shared=False, head=None)
    asked = documents(prompts_of((9, 12, 9, 9)))
    assert_scores_are_naive(build("llama"), asked, scored(of, asked))
    assert network.shapes == ([(1, 11), (3, 8)] if way == "right_padded" else [(1, 11), (1, 8), (1, 8), (1, 8)])


# --------------------------------------------------------------------------------------------------- closed forms


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
    outcomes = scored(setup_of(Counter(), shared=False), [ScoreRequest(i, (passage(t, len(t) - 1),)) for i, t in enumerate(texts)])
    np.testing.assert_allclose([o.scores[0].logprobs[0] for o in outcomes], [-1, -5, -3], rtol=1e-6)


# ------------------------------------------------------------------------------------------------------ failures


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


# ------------------------------------------------------------------------------------------------------ reference


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


def test_a_model_held_against_itself_does_not_differ():
    outcomes = scored(setup("llama"), documents(TEXTS), setup("llama"))
    assert all(
        o.divergences is not None and np.abs(o.divergences[0].kls).max() < 1e-5 and o.divergences[0].agreements.all() for o in outcomes
    )


def test_what_one_of_two_models_does_not_allow_is_not_done():
    of = setup_of(Calls(build("llama")), shared=False, head=None)
    work = Scorer(setup("llama"), of)
    scored_with(work, ragged_choices())
    assert work.progress.prefilled > 800  # of 1,000 or so: each choice of several tokens is fed with its prompt


# ----------------------------------------------------------------------------------------------- work and its bounds


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
    work = Scorer(replace(setup_of(network, tokens=4096, wanted=Wanted(echo=True, top=5)), vocabulary=152_000))
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tracemalloc.start()
    assert len(scored_with(work, asked)) == 4
    numpy_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mx.get_peak_memory() - before + numpy_peak < 256 << 20


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


# -------------------------------------------------------------------------------------------------- deterministic


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_rows_bytes_do_not_depend_on_the_order_of_rows(name: str):
    asked = ragged_choices() + [replace(r, row=r.row + 6) for r in documents([*TEXTS, TEXTS[1]])]
    of = setup(name, static=True, wanted=Wanted(echo=True, top=3, stats=True))
    shuffled = [asked[i] for i in np.random.default_rng(0).permutation(len(asked))]
    assert as_bytes(scored(of, asked)) == as_bytes(scored(of, shuffled))
    assert_scores_are_naive(build(name), asked, scored(of, asked))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2"])
def test_a_rows_bytes_do_not_depend_on_what_its_mates_contain(name: str):
    texts = prompts_of((12, 9, 12, 5, 7, 9, 30, 3))
    others = [t if i == 4 else [(x + 1) % VOCABULARY for x in t] for i, t in enumerate(texts)]
    others[2], others[5] = others[0], others[1]  # mates that are alike, too
    of = setup(name, static=True)
    first, second = (as_bytes(scored(of, documents(t))) for t in (texts, others))
    assert first[4] == second[4]
    assert first[0] != second[0]


def test_static_batches_are_made_by_rows_alone():
    """Neither memory nor what could be shared enters."""
    network = Calls(build("llama"))
    of = setup_of(network, rows=3, static=True, head=None)
    scored(replace(of, limits=replace(of.limits, kv_bytes=50.0)), documents([TEXTS[1]] * 4))
    assert [b for b, _ in network.shapes if b] == [3, 3, 1]  # three rows in two calls of at most 64 tokens, then one


# ---------------------------------------------------------------------------------------------------------- power


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

    read = scorers.read
    monkeypatch.setattr(scorers, "read", shifted)
    with pytest.raises(AssertionError):
        assert_scores_are_naive(build("llama"), documents(TEXTS), scored(setup("llama"), documents(TEXTS)))


def test_a_child_on_top_of_another_row_fails(monkeypatch: pytest.MonkeyPatch):
    def reversed_rows(children: Any, rows: Any, *more: Any) -> Any:
        for caches in rows.caches:
            scorers.select(caches, list(range(rows.rows))[::-1], rows.rows, padded=False)
        return in_turn(work, children, rows, *more)

    work, in_turn = Scorer(setup("llama", rows=8)), Scorer._feed_in_turn  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(work, "_feed_in_turn", reversed_rows)
    asked = ragged_choices()
    outcomes = [o for o in scored_with(work, asked) if isinstance(o, Scored)]
    with pytest.raises(AssertionError):
        assert_scores_are_naive(build("llama"), asked, outcomes)


def test_the_naive_truth_is_that_of_the_kernel():
    ids = TEXTS[1]
    logits = build("llama")(mx.array([ids]))[0, :-1]
    truth = log_probabilities(build("llama"), ids)[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(logprobs.score(logits, np.array(ids[1:], np.int32)).logprobs, truth, rtol=0, atol=1e-5)
