"""Tests rollouts by group: pass@k against its definition, groups over batch borders, samples without a reward."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.report_data.rollout_figures import RolloutFigures
from mlx_bulk.jobs.statistics.standard_errors import clustered_error

from ..support.rollout_batches import Sample, batches

# round, row, sample, reward. The policy version is the round.


def gathered(samples: list[Sample], cuts: list[int]) -> RolloutFigures:
    """The figures of these samples, added in batches that end at ``cuts``; one function, whose rewards are the samples'."""
    figures = RolloutFigures()
    for batch in batches(samples, cuts):
        figures.add(batch)
    figures.finish()
    return figures


def samples_of(rewards: list[list[float | None]]) -> list[Sample]:
    return [(row % 2, row, index, reward) for row, group in enumerate(rewards) for index, reward in enumerate(group)]


BINARY = st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=6), min_size=1, max_size=8)


@given(BINARY, st.lists(st.integers(0, 40), max_size=4))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(rewards: list[list[float | None]], cuts: list[int]):
    figures = gathered(samples_of(rewards), cuts)
    rated = [[reward for reward in group if reward is not None] for group in rewards]
    for k, value, of in figures.sums.functions["right"].pass_curve:
        fit = [group for group in rated if len(group) >= k]
        draws = [[any(draw) for draw in combinations(group, k)] for group in fit]
        assert of == len(fit)
        assert value == pytest.approx(np.mean([np.mean(draw) for draw in draws]))
    counts = figures.sums.counts
    assert counts["groups"] == len(rewards)
    assert counts["degenerate"] == sum(len(set(group)) < 2 for group in rated)
    assert counts["unrated"] == sum(reward is None for group in rewards for reward in group)
    assert figures.rewards.count == figures.sums.reward.count == sum(map(len, rated))


def test_the_curve_goes_by_powers_of_two_to_the_largest_group():
    figures = gathered(samples_of([[1.0, 0, 0, 0, 0, 0], [0.0, 0, 0]]), [])
    assert [(k, of) for k, _, of in figures.sums.functions["right"].pass_curve] == [(1, 2), (2, 2), (4, 1), (6, 1)]


def test_a_function_with_other_rewards_has_no_curve():
    figures = gathered(samples_of([[1.0, 0.5], [0.0, 1.0]]), [])
    assert figures.sums.functions["right"].pass_curve == []
    assert figures.means.count == 2


def test_best_and_worst_are_of_groups_that_differ():
    figures = gathered(samples_of([[0.0, 0.0], [0.2, 0.9, None, 0.1], [None, None]]), [3])
    assert figures.best.found == [(1, 1, 1)]
    assert figures.worst.found == [(1, 1, 3)]


def test_versions_have_their_means_and_errors_by_group():
    figures = gathered(samples_of([[1.0, 0.0, 0.5], [0.5, 0.7], [1.0, 1.0], [None], [0.25, None, 0.0, 1.0]]), [1, 4])
    even, odd = figures.versions["0"], figures.versions["1"]
    assert (even.reward.count, odd.reward.count) == (8, 2)
    assert even.reward.mean == pytest.approx(np.mean([1, 0, 0.5, 1, 1, 0.25, 0, 1]))
    assert even.reward_error == pytest.approx(clustered_error(np.array([1.5, 2.0, 1.25]), np.array([3, 2, 3])))
    assert (odd.reward.mean, odd.reward_error) == (pytest.approx(0.6), None)
