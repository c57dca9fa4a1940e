"""Tests how a row ends in the engine: length, EOS, stop ids, stop strings, and logits that are not finite."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Generated
from mlx_bulk.runner.core.requests import Sampling
from mlx_bulk.runner.engine.engine import Engine

from ..support.tiny import Chain, random_chain
from ..support.tiny_runs import outcomes_of, request, run, setup_of

NEXT = [1, 2, 3, 4, 5, 6, 7, 7]  # a chain that counts to 7


def counting() -> Chain:
    table = np.zeros((8, 8), np.float32)
    table[np.arange(8), NEXT] = 20.0
    return Chain(table)


def ended(eos: Sequence[int] = (), **parameters: object) -> Generated:
    sampling = replace(Sampling(max_tokens=6, temperature=0.0), **parameters)  # pyright: ignore[reportArgumentType]
    return run(setup_of(counting()), [request(0, [5, 0], sampling)], eos)[0]


def test_a_completion_ends_at_its_length():
    outcome = ended()
    assert (outcome.ids.tolist(), outcome.finish_reason, outcome.stop_reason) == ([1, 2, 3, 4, 5, 6], "length", None)


def test_eos_is_kept_and_has_no_reason():
    outcome = ended(eos=[3, 7])
    assert (outcome.ids.tolist(), outcome.finish_reason, outcome.stop_reason) == ([1, 2, 3], "stop", None)
    assert len(outcome.scores.logprobs) == len(outcome.sampled_logprobs) == 3


def test_eos_at_the_last_allowed_token_is_a_stop():
    assert ended(eos=[6]).finish_reason == "stop"
    assert ended(stop_token_ids=(6,)).finish_reason == "stop"
    assert ended(max_tokens=1, eos=[1]).ids.tolist() == [1]


def test_a_stop_id_is_named():
    outcome = ended(eos=[5], stop_token_ids=(4, 2))
    assert (outcome.ids.tolist(), outcome.finish_reason, outcome.stop_reason) == ([1, 2], "stop", "2")


def test_eos_ignored_may_be_sampled_and_stop_ids_still_stop():
    assert ended(eos=[2], ignore_eos=True).finish_reason == "length"
    outcome = ended(eos=[2], ignore_eos=True, stop_token_ids=(4,))
    assert (outcome.ids.tolist(), outcome.stop_reason) == ([1, 2, 3, 4], "4")


def test_before_min_tokens_neither_eos_nor_stop_ids_are_sampled():
    """The count is stopped at 2, so the lowest of the equals that are left follows; from min_tokens on EOS may come."""
    outcome = ended(eos=[2], stop_token_ids=(0,), min_tokens=3)
    assert outcome.ids.tolist() == [1, 1, 1, 2]
    assert outcome.finish_reason == "stop"
    np.testing.assert_allclose(outcome.scores.logprobs[1], -20.0, rtol=0, atol=1e-4)  # the model's own, without the mask


def test_rows_of_one_batch_end_by_their_own_rules():
    chain, asked = counting(), Sampling(max_tokens=6, temperature=0.0)
    rules = [
        asked,
        replace(asked, stop_token_ids=(2,)),
        replace(asked, ignore_eos=True),
        replace(asked, max_tokens=2),
        replace(asked, min_tokens=5),
    ]
    outcomes = run(setup_of(chain, rows=5), [request(i, [0], s) for i, s in enumerate(rules)], eos=[4])
    assert [len(o.ids) for o in outcomes] == [4, 2, 6, 2, 6]
    assert [o.finish_reason for o in outcomes] == ["stop", "stop", "length", "length", "stop" if outcomes[4].ids[-1] == 4 else "length"]


class Words:
    """Stops once the ids given have been pushed one after the other."""

    def __init__(self, ids: list[int]):
        self.wanted, self.pushed = ids, list[int]()

    def push(self, token: int) -> str | None:
        self.pushed.append(token)
        return "words" if self.pushed[-len(self.wanted) :] == self.wanted else None


def test_a_stopper_sees_its_own_rows_tokens_and_a_stop_id_goes_before_it():
    stoppers = {"2 3": Words([2, 3]), "4": Words([4]), "6": Words([6])}
    engine = Engine(setup_of(counting()), frozenset([7]), lambda sampling: stoppers[sampling.stop[0]])
    plain = Sampling(max_tokens=6, temperature=0.0)
    rules = [plain, replace(plain, stop=("2 3",)), replace(plain, stop=("4",), stop_token_ids=(4,)), replace(plain, stop=("6",))]
    windows = iter([[request(i, start, s) for i, (start, s) in enumerate(zip(([0], [0, 1], [2], [0]), rules, strict=True))]])
    outcomes = sorted(engine.run(lambda wait: next(windows, None)), key=lambda o: o.row)
    assert all(isinstance(o, Generated) for o in outcomes)
    found = [(o.ids.tolist(), o.finish_reason, o.stop_reason) for o in outcomes if isinstance(o, Generated)]
    assert found == [
        ([1, 2, 3, 4, 5, 6], "length", None),
        ([2, 3], "stop", "words"),
        ([3, 4], "stop", "4"),
        ([1, 2, 3, 4, 5, 6], "stop", "words"),  # at the last allowed token
    ]
    assert stoppers["2 3"].pushed == [2, 3]


# -------------------------------------------------------------------------------------------------- numbers that are none


@pytest.mark.parametrize("broken", [np.nan, -np.inf])
@pytest.mark.parametrize("sampling", [Sampling(max_tokens=5), Sampling(max_tokens=5, temperature=0.0), Sampling(max_tokens=5, top_k=3)])
def test_a_row_of_nan_fails_alone(sampling: Sampling, broken: float):
    """Token 9 is followed by no number; rows that never meet it keep their tokens."""
    chain = random_chain(30)
    table = np.array(chain.table)
    table[:, 9] = -np.inf  # only a prompt brings it
    whole = Chain(table)
    table = table.copy()
    table[9] = broken
    requests = [request(i, [3, start], sampling, [i]) for i, start in enumerate((4, 9, 5))]
    outcomes = outcomes_of(setup_of(Chain(table), wanted=LogprobOptions(top=4, stats=True)), requests)
    failure = outcomes[1]
    assert isinstance(failure, Failure)
    assert (failure.row, failure.sample, failure.stage) == (1, 0, "generate")
    assert "NaN" in failure.message
    right = run(setup_of(whole), [requests[0], requests[2]])
    assert [o.ids.tolist() for o in outcomes if isinstance(o, Generated)] == [o.ids.tolist() for o in right]


def test_nan_within_a_prompt_that_is_echoed_fails_its_row():
    chain = random_chain(30)
    table = np.array(chain.table)
    table[:, 9] = -np.inf
    table[9] = np.nan
    requests = [request(i, prompt, Sampling(max_tokens=3), [i]) for i, prompt in enumerate(([3, 9, 4], [3, 5, 4]))]
    first, second = outcomes_of(setup_of(Chain(table)), requests)
    assert isinstance(first, Failure)
    assert isinstance(second, Generated)


def test_a_logprob_of_minus_infinity_stays():
    table = np.array(random_chain(30).table)
    table[3, 9] = -np.inf
    outcome = run(setup_of(Chain(table)), [request(0, [3, 9, 4], Sampling(max_tokens=2, temperature=0.0))])[0]
    assert outcome.echo is not None
    assert outcome.echo.logprobs[0] == -np.inf
    assert np.isfinite(outcome.echo.logprobs[1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_tokens_are_all_masked_fails(temperature: float):
    """min_tokens masks every stop id, and here every id is one: nothing can be sampled."""
    everything = tuple(range(counting().vocabulary))
    asked = request(0, [1], Sampling(max_tokens=4, min_tokens=2, temperature=temperature, stop_token_ids=everything))
    [failure] = outcomes_of(setup_of(counting(), wanted=LogprobOptions()), [asked])
    assert isinstance(failure, Failure)
    assert (failure.error, failure.sample) == ("NotANumber", 0)
