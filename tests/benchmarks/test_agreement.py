"""Tests when benchmarks call two outputs the same: completions may part at a tie and nowhere else."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

OURS = {"ids": [[5, 6, 7], [8, 9, 9]], "logprobs": [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]}


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("racing.agreement")


def changed(row: int, at: int, token: int | None = None, logprob: float | None = None) -> dict[str, Any]:
    ids, logprobs = [list(one) for one in OURS["ids"]], [list(one) for one in OURS["logprobs"]]
    ids[row][at] = ids[row][at] if token is None else token
    logprobs[row][at] = logprobs[row][at] if logprob is None else logprob
    return {"ids": ids, "logprobs": logprobs}


def test_a_tie_parts_two_completions(agreement: Any):
    found = agreement.greedy("peer", OURS, changed(1, 1, token=3, logprob=-5.0005))
    assert found["equal"] == 0.5
    assert found["largest_difference"] == pytest.approx(0.0005)


def test_tokens_after_a_tie_are_not_compared(agreement: Any):
    theirs = changed(0, 1, token=3)
    theirs["logprobs"][0][2] = -9.0
    assert agreement.greedy("peer", OURS, theirs)["largest_difference"] == 0.0


@pytest.mark.parametrize("theirs", [changed(0, 1, token=3, logprob=-2.1), changed(1, 2, logprob=-6.1), changed(0, 2, logprob=float("nan"))])
def test_another_token_or_logprob_is_no_tie(agreement: Any, theirs: dict[str, Any]):
    with pytest.raises(agreement.DisagreementError, match="peer: a logprob differs"):
        agreement.greedy("peer", OURS, theirs)


def test_a_piece_of_the_work_is_compared_with_as_much_of_ours(agreement: Any):
    assert agreement.greedy("peer", OURS, {"ids": OURS["ids"][:1], "logprobs": OURS["logprobs"][:1]})["equal"] == 1.0


def test_a_completion_that_stops_early_is_refused(agreement: Any):
    with pytest.raises(agreement.DisagreementError, match="2 tokens, ours has 3"):
        agreement.greedy("peer", OURS, {"ids": [[5, 6]], "logprobs": [[-1.0, -2.0]]})


def test_seeded_draws_may_part_anywhere_but_agree_before(agreement: Any):
    assert agreement.seeded("peer", OURS, changed(0, 1, token=3, logprob=-7.0))["equal"] == 0.5
    theirs = changed(0, 1, token=3)
    theirs["logprobs"][0][0] = -1.1
    with pytest.raises(agreement.DisagreementError):
        agreement.seeded("peer", OURS, theirs)


def test_drawn_tokens_are_held_to_a_common_mean(agreement: Any):
    ids = [[1] * 100]
    ours = {"ids": ids, "logprobs": [[-2.0, -3.0] * 50]}
    assert agreement.drawn("peer", ours, {"ids": ids, "logprobs": [[-2.1, -3.1] * 50]})["mean_logprob"] == pytest.approx(-2.6)
    with pytest.raises(agreement.DisagreementError, match="mean logprob"):
        agreement.drawn("peer", ours, {"ids": ids, "logprobs": [[-2.5, -3.5] * 50]})


def test_sums_are_compared_text_by_text(agreement: Any):
    assert agreement.sums("peer", [-100.0, -200.0], [-100.005, -200.0]) == pytest.approx(5e-5)
    with pytest.raises(agreement.DisagreementError):
        agreement.sums("peer", [-100.0, -200.0], [-100.1, -199.9])
