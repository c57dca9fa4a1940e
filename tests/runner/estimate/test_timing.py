"""Tests costs fitted to a trial: the true ones where known, never negative, and their sum is the trial's time."""

import numpy as np
import pytest
from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Sample, Sampling
from mlx_bulk.runner.estimate.forecast import Work
from mlx_bulk.runner.estimate.timing import COSTS, Calibration, fit_costs


def test_costs_are_recovered_where_turns_distinguish_them():
    rng = np.random.default_rng(0)
    most = np.array([1, 32, 1, 2_000, 0])
    counts = np.column_stack([np.ones(60), rng.integers(0, most[1:] + 1, (60, 4))]).astype(np.float64)
    costs = np.array([0.02, 0.001, 0.05, 0.0001, 0.0])
    np.testing.assert_allclose(fit_costs(counts, counts @ costs), costs, rtol=1e-6, atol=1e-12)


def test_costs_are_never_negative_and_come_to_what_the_turns_took():
    counts = np.array([[1.0, 10.0], [1.0, 20.0], [1.0, 30.0]])
    seconds = np.array([3.0, 2.0, 1.0])  # more rows take less time: no sum of costs does that
    found = fit_costs(counts, seconds)
    assert (found >= 0).all()
    assert (counts @ found).sum() == pytest.approx(6.0)


def test_work_that_no_turn_counts_costs_nothing():
    assert fit_costs(np.zeros((4, 3)), np.ones(4)).tolist() == [0.0, 0.0, 0.0]


def calibration(lengths: list[int]) -> Calibration:
    return Calibration(1.0, dict.fromkeys(COSTS, 0.0) | {"steps": 0.5, "padded": 0.01}, 3, 2.0, lengths, 0)


def test_seconds_are_the_works_sums_by_their_costs():
    assert calibration([]).seconds_of(Work(steps=10, padded=200, scored=7)) == pytest.approx(10 * 0.5 + 200 * 0.01)


def test_lengths_are_those_measured_but_never_above_max_tokens():
    ids = np.zeros(3, np.int32)
    requests = [Request(i, Prompt("", ids, ids), Generate(Sampling(max_tokens=20), (Sample(0, 0),))) for i in range(300)]
    found = [calibration([5, 10, 60]).length(request, request.work.samples[0]) for request in requests]
    assert set(found) == {5, 10, 20}
    assert np.mean(found) == pytest.approx((5 + 10 + 20) / 3, rel=0.1)
    assert calibration([]).length(requests[0], requests[0].work.samples[0]) == 20
