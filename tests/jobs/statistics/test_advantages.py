"""Tests advantages in closed form, and which samples they leave out."""

import doctest
import math
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.statistics.advantages import advantages, is_degenerate, weighted

REWARDS = st.lists(st.none() | st.sampled_from([0.0, 0.25, 1.0, -2.0]), min_size=1, max_size=9)


def test_the_examples_hold():
    assert doctest.testmod(import_module("mlx_bulk.jobs.statistics.advantages")).failed == 0


def test_one_success_in_eight_is_2_474():
    """Mean 1/8; with n - 1 the deviation is sqrt((49 + 7) / 64 / 7) = 0.353553."""
    found = advantages("grpo", [0.0, 1.0, *[0.0] * 6])
    assert found[1] == pytest.approx((7 / 8) / (math.sqrt(1 / 8) + 1e-4), rel=1e-12)
    assert found[1] == pytest.approx(2.474, abs=5e-4)
    assert found[0] == pytest.approx(-(1 / 8) / (math.sqrt(1 / 8) + 1e-4), rel=1e-12)


def test_centered_and_rloo_in_closed_form():
    assert advantages("centered", [1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]
    assert advantages("rloo", [1.0, 0.0, 0.5]) == pytest.approx([1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5])
    assert advantages("none", [1.0, None]) == [None, None]


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
def test_a_sample_without_reward_is_outside_mean_and_deviation(kind: str):
    kept = advantages(kind, [1.0, 0.0, 0.0])
    assert advantages(kind, [1.0, None, 0.0, None, 0.0]) == [kept[0], 0.0, kept[1], 0.0, kept[2]]


@pytest.mark.parametrize("kind", ["grpo", "centered", "rloo"])
@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [None, 3.0, None], [None, None], [1.0]])
def test_nothing_to_compare_is_zero_for_all(kind: str, rewards: list[float | None]):
    assert advantages(kind, rewards) == [0.0] * len(rewards)
    assert is_degenerate(rewards)


def test_rewards_that_are_stored_alike_are_alike():
    """0.1 + 0.2 and 0.3 differ in float64 alone: over their deviation of 4e-17 an advantage would be made of rounding."""
    assert 0.1 + 0.2 != 0.3
    assert advantages("rloo", [0.1 + 0.2, 0.3]) == [0.0, 0.0]


@given(REWARDS)
def test_grpo_is_numpys_mean_and_deviation(rewards: list[float | None]):
    rated = np.array([reward for reward in rewards if reward is not None])
    found = [advantage for advantage, reward in zip(advantages("grpo", rewards), rewards, strict=True) if reward is not None]
    expected = (rated - rated.mean()) / (rated.std(ddof=1) + 1e-4) if len(set(rated)) > 1 else np.zeros(len(rated))
    np.testing.assert_allclose(np.array(found, float), expected, rtol=1e-12, atol=1e-12)


@given(REWARDS)
def test_rloo_is_the_reward_less_the_mean_of_the_others(rewards: list[float | None]):
    for i, (advantage, reward) in enumerate(zip(advantages("rloo", rewards), rewards, strict=True)):
        others = [other for j, other in enumerate(rewards) if j != i and other is not None]
        expected = reward - sum(others) / len(others) if reward is not None and others else 0.0
        assert advantage == pytest.approx(expected, abs=1e-12)


def test_a_function_is_left_out_where_it_gave_nothing():
    rewards: dict[str, list[float | None]] = {"a": [1.0, None, None, 2.0], "b": [3.0, 4.0, None, None]}
    assert weighted(rewards, {"a": 0.5, "b": -1.0}) == [0.5 - 3.0, -4.0, None, 1.0]
