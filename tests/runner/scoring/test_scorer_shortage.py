"""Tests a lack of device memory while scoring: batches shrink, an unfinished window starts again, and scores do not change."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from mlx_bulk.runner.core.errors import OutOfRoom
from mlx_bulk.runner.core.outcomes import Failure, Outcome, Scored
from mlx_bulk.runner.core.requests import ScoreRequest
from mlx_bulk.runner.engine.oom_backoff import LEAST_TOKENS
from mlx_bulk.runner.scoring.scorer import Scorer

from ..support.naive_truth import assert_scores_are_naive
from ..support.score_calls import TEXTS, ragged_choices
from ..support.small_memory import Refuses, Tight
from ..support.tiny import build, prompts_of
from ..support.tiny_runs import documents, multiple_choice, scored_with, setup_of


def outcomes_in(
    refuses: Refuses, asked: Sequence[ScoreRequest], reference: bool = False, **more: Any
) -> tuple[list[Outcome], Scorer, Tight]:
    network = Tight(build("llama"), refuses)
    options: dict[str, Any] = {"rows": 8, "tokens": 256, "head": None, **more}
    setup = setup_of(network, **options)
    scorer = Scorer(setup, setup if reference else None)
    return scored_with(scorer, list(asked)), scorer, network


def assert_complete(asked: Sequence[ScoreRequest], outcomes: Sequence[Outcome]) -> None:
    """Each row has come out once, with the logprobs of full forwards."""
    done = [o for o in outcomes if isinstance(o, Scored)]
    assert [o.row for o in done] == [r.row for r in asked]
    assert_scores_are_naive(build("llama"), asked, done)


@pytest.mark.parametrize("reference", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("asked", [documents(TEXTS), ragged_choices()], ids=["documents", "choices"])
@pytest.mark.parametrize(
    "refuses",
    [
        lambda rows, width, cached: rows > 3,
        lambda rows, width, cached: rows > 1,
        lambda rows, width, cached: rows * cached > 100,
        lambda rows, width, cached: rows * width > 60,
        lambda rows, width, cached: cached > width and rows > 1,  # on top of what is shared
    ],
    ids=["four rows", "two rows", "wide batches", "long calls", "copies"],
)
def test_scores_are_the_same_wherever_memory_runs_out(refuses: Refuses, asked: list[ScoreRequest], reference: bool):
    outcomes, scorer, network = outcomes_in(refuses, asked, reference, tokens=128)
    assert network.held == 0
    assert_complete(asked, outcomes)
    assert scorer.progress.scored == sum(len(p.positions) for r in asked for p in r.passages)
    assert scorer.progress.prompt == sum(len(p.ids) for r in asked for p in r.passages)
    assert len(network.refused) <= 8


def test_a_passage_that_does_not_fit_alone_costs_its_row_and_no_other():
    texts = prompts_of((30, 150, 12, 40))
    asked = [*documents(texts), *(replace(r, row=r.row + 4) for r in documents([texts[1], texts[1][:90]]))]
    outcomes, scorer, _ = outcomes_in(lambda rows, width, cached: cached > 100, asked)
    failed = [o for o in outcomes if isinstance(o, Failure)]
    assert [(o.row, o.sample, o.stage, o.error) for o in failed] == [(1, 0, "score", "OutOfMemory"), (4, 0, "score", "OutOfMemory")]
    assert failed[0].message.startswith("out of device memory with this row alone: 150 tokens ([metal::malloc]")
    assert failed[0].message.endswith("; shorten it, or lower score.context")
    rest = [r for r in asked if r.row not in (1, 4)]
    assert_complete(rest, [o for o in outcomes if isinstance(o, Scored)])
    assert scorer.progress.scored == sum(len(p.positions) for r in rest for p in r.passages)


def test_a_choice_that_does_not_fit_costs_its_row():
    asked = multiple_choice(prompts_of((20, 30)), [prompts_of((3, 90)), prompts_of((2, 4))])
    outcomes, _, _ = outcomes_in(lambda rows, width, cached: cached > 100, asked)
    assert [type(o) for o in outcomes] == [Failure, Scored]
    assert_complete(asked[1:], outcomes[1:])


def test_long_documents_are_tried_in_smaller_calls():
    asked = documents(prompts_of((400, 30, 300)))
    outcomes, _, network = outcomes_in(lambda rows, width, cached: rows * width > 150, asked, tokens=1024)
    assert_complete(asked, outcomes)
    assert max(rows * width for rows, width, _ in network.calls if rows * width <= 150) > LEAST_TOKENS


def test_the_next_window_shares_again():
    """One call, of what the choices share, fails once."""
    refused: list[int] = []

    def refuses(rows: int, width: int, cached: int) -> bool:
        return not refused and not refused.append(rows)

    asked = ragged_choices()
    network = Tight(build("llama"), refuses)
    scorer = Scorer(setup_of(network, rows=8, tokens=256, head=None))
    windows = iter([asked[:1], [replace(r, row=r.row + 1) for r in asked[:1]]])
    fed, calls = list[int](), 0
    for outcome in scorer.run(lambda wait: next(windows, None)):
        assert isinstance(outcome, Scored)
        fed.append(sum(rows * width for rows, width, _ in network.calls[calls:]))
        calls = len(network.calls)
    assert refused == [1]
    assert len(fed) == 2
    assert fed[0] > sum(len(p.ids) for p in asked[0].passages)  # each choice stood behind a prompt of its own
    assert fed[1] < fed[0] / 3


def test_deterministic_batches_stay_as_they_are():
    with pytest.raises(OutOfRoom, match=r"while scoring 4 rows .*; what was finished is safe. batch.deterministic can not"):
        outcomes_in(lambda rows, width, cached: width > 30, documents(TEXTS), rows=4, static=True)


@pytest.mark.parametrize("asked", [documents(TEXTS), ragged_choices()], ids=["documents", "choices"])
def test_a_deterministic_batch_is_tried_once_more_and_gives_the_same_bits(asked: list[ScoreRequest]):
    def outcomes(number: int) -> tuple[list[Outcome], Scorer, Tight]:
        calls = count(1)
        return outcomes_in(lambda *_: next(calls) == number, asked, rows=4, static=True)

    truth, scorer, whole = outcomes(0)
    counts = scorer.progress.scored, scorer.progress.prompt
    for number in (1, 2, len(whole.calls)):
        found, scorer, short = outcomes(number)
        assert len(short.refused) == 1
        assert (scorer.progress.scored, scorer.progress.prompt) == counts
        for one, other in zip(found, truth, strict=True):
            assert isinstance(one, Scored)
            assert isinstance(other, Scored)
            assert [scores.logprobs.tobytes() for scores in one.scores] == [scores.logprobs.tobytes() for scores in other.scores]
