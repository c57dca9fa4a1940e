"""Rollouts by group: pass@k against its definition, groups over batch borders, what has no reward."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.report_data.rollout_groups import GroupFigures
from mlx_bulk.jobs.statistics.standard_errors import clustered_error

Sample = tuple[int, int, int, float | None]  # round, row, sample, reward


def gathered(samples: list[Sample], cuts: list[int]) -> GroupFigures:
    """The groups of these samples, added in batches that end at ``cuts``; one function, whose rewards are the samples'."""
    groups = GroupFigures(["right"])
    edges = [0, *sorted(cut for cut in cuts if cut <= len(samples)), len(samples)]
    for start, end in pairwise(edges):
        some = samples[start:end]
        rewards = np.array([np.nan if reward is None else reward for *_, reward in some])
        groups.add(
            np.array([who for *who, _ in some], np.int64).reshape(-1, 3),
            np.stack([rewards, rewards], axis=1).reshape(-1, 2),
            [str(turn) for turn, *_ in some],
        )
    groups.finish()
    return groups


def samples_of(rewards: list[list[float | None]]) -> list[Sample]:
    return [(row % 2, row, index, reward) for row, group in enumerate(rewards) for index, reward in enumerate(group)]


BINARY = st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=6), min_size=1, max_size=8)


@given(BINARY, st.lists(st.integers(0, 40), max_size=4))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(rewards: list[list[float | None]], cuts: list[int]):
    groups = gathered(samples_of(rewards), cuts)
    rated = [[reward for reward in group if reward is not None] for group in rewards]
    for k, value, of in groups.pass_curve("right"):
        fit = [group for group in rated if len(group) >= k]
        draws = [[any(draw) for draw in combinations(group, k)] for group in fit]
        assert of == len(fit)
        assert value == pytest.approx(np.mean([np.mean(draw) for draw in draws]))
    assert groups.count == len(rewards)
    assert groups.even == sum(len(set(group)) < 2 for group in rated)
    assert groups.unrewarded == sum(reward is None for group in rewards for reward in group)
    assert groups.rewards.count == sum(map(len, rated))


def test_the_curve_goes_by_powers_of_two_to_the_largest_group():
    groups = gathered(samples_of([[1.0, 0, 0, 0, 0, 0], [0.0, 0, 0]]), [])
    assert [(k, of) for k, _, of in groups.pass_curve("right")] == [(1, 2), (2, 2), (4, 1), (6, 1)]


def test_a_function_with_other_rewards_has_no_curve():
    groups = gathered(samples_of([[1.0, 0.5], [0.0, 1.0]]), [])
    assert groups.pass_curve("right") == []
    assert groups.means.count == 2


def test_best_and_worst_are_of_groups_that_differ():
    groups = gathered(samples_of([[0.0, 0.0], [0.2, 0.9, None, 0.1], [None, None]]), [3])
    assert groups.best.found == [(1, 1, 1)]
    assert groups.worst.found == [(1, 1, 3)]


def test_versions_have_their_means_and_errors_by_group():
    groups = gathered(samples_of([[1.0, 0.0, 0.5], [0.5, 0.7], [1.0, 1.0], [None], [0.25, None, 0.0, 1.0]]), [1, 4])
    even, odd = groups.versions["0"], groups.versions["1"]
    assert (even.count, odd.count) == (8, 2)
    assert even.mean == pytest.approx(np.mean([1, 0, 0.5, 1, 1, 0.25, 0, 1]))
    assert even.error == pytest.approx(clustered_error(np.array([1.5, 2.0, 1.25]), np.array([3, 2, 3])))
    assert (odd.mean, odd.error) == (pytest.approx(0.6), None)
