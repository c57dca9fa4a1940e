"""Tests how long completions wait for their ratings, and that each gets its own."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from mlx_bulk.kernels.logprobs import Scores
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Sample, Sampling, TokenInput
from mlx_bulk.runner.pool_engine.reward_rater import BATCHES, MOST, RewardRater

from ..support.pooling_models import WordTable, pooling_setup_of, texts_of, truth

NOTHING = np.zeros(0, np.float32)
REQUEST = Request(0, Prompt("", np.zeros(1, np.int32), np.zeros(1, np.int32)), Generate(Sampling(), (Sample(0, 0),)))


def completion(row: int) -> Generated:
    return Generated(row, Sample(0, row), np.zeros(0, np.int32), Scores(NOTHING), NOTHING, "stop", None, None)


def rater_of(networks: Sequence[WordTable], inputs: Sequence[TokenInput | str], tokens: int = 64, longest: int = 100) -> RewardRater:
    """A rater whose models read ``inputs[row]`` of a row's completion, if it has at most ``longest`` tokens."""
    setups = [pooling_setup_of(network, rows=8, tokens=tokens) for network in networks]
    checks = [lambda request: f"{request.reach} tokens" if request.reach > longest else None] * len(setups)
    return RewardRater(setups, checks, lambda request, outcome: [inputs[outcome.row]] * len(setups))


def test_completions_wait_until_they_fill_some_batches():
    inputs = texts_of([32] * 2 * BATCHES + [3])
    rater = rater_of([network := WordTable()], inputs)
    full: list[bool] = []
    for row in range(2 * BATCHES):
        rater.add(REQUEST, completion(row))
        full.append(rater.full)
    assert full == [False] * (2 * BATCHES - 1) + [True]
    assert network.calls == []
    assert len(list(rater.rated(lambda: False))) == 2 * BATCHES
    assert network.calls == [(2, 32)] * BATCHES
    assert (rater.waiting, rater.full) == (0, False)


def test_no_more_than_some_wait_however_short_they_are():
    rater = rater_of([WordTable()], texts_of([1] * MOST), tokens=1 << 20)
    for row in range(MOST):
        assert not rater.full
        rater.add(REQUEST, completion(row))
    assert rater.full


def test_each_completion_has_a_rating_of_each_model_or_its_reason():
    inputs: list[TokenInput | str] = [*texts_of([5, 9, 40, 5]), "template: refused"]
    rater = rater_of([WordTable(), WordTable()], inputs, longest=30)
    for row in range(len(inputs)):
        rater.add(REQUEST, completion(row))
    found = {outcome.row: outcome.ratings for outcome in rater.rated(lambda: False)}
    assert sorted(found) == list(range(len(inputs)))
    for row, given in enumerate(inputs):
        assert found[row][0] == found[row][1]
        reward, reason = found[row][0].reward, found[row][0].reason
        if row in (0, 1, 3):
            assert isinstance(given, TokenInput)
            assert (reward, reason) == (pytest.approx(truth(given)[0], abs=1e-4), None)
        else:
            assert (reward, reason) == (None, {2: "too_long: 40 tokens", 4: "template: refused"}[row])


def test_a_run_that_is_to_end_gets_no_half_rated_completions():
    inputs = texts_of([5, 9, 12])
    network = WordTable()
    rater = rater_of([network, WordTable()], inputs)
    for row in range(len(inputs)):
        rater.add(REQUEST, completion(row))
    assert list(rater.rated(lambda: len(network.calls) > 0)) == []
    assert network.calls


def test_equal_completions_of_a_group_get_one_rating_whenever_they_come():
    """In another batch the last bits of a rating can be others: equal samples would then differ in their advantages."""
    (text,) = texts_of([9])
    network = WordTable()
    rater = rater_of([network], [text, text])
    group = replace(REQUEST, work=Generate(Sampling(), tuple(Sample(index, index) for index in range(3))))
    found: list[Generated] = []
    for samples in ((0, 1), (2,)):
        for index in samples:
            rater.add(group, replace(completion(0), sample=Sample(index, index)))
        found += rater.rated(lambda: False)
    assert len({outcome.ratings for outcome in found}) == 1
    assert [rows for rows, _ in network.calls] == [1]
    rater.add(REQUEST, completion(1))  # another group, whose texts are computed by themselves
    assert len(list(rater.rated(lambda: False))) == 1
    assert len(network.calls) == 2
