"""Tests YaRN whose range of frequencies is not rounded, as GPT-OSS has it."""

from math import log, pi
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_bulk.runner.core.arrays import Floats
from mlx_bulk.runner.models.rope_compat import keep_yarn_range, yarn_periods
from mlx_lm.models.rope_utils import YarnRoPE

DIMS, THETA = 64, 150000
SCALING: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


class OneLayer(nn.Module):
    """A network whose attention is its positions alone."""

    def __init__(self):
        super().__init__()
        self.rope = YarnRoPE(DIMS, base=THETA, scaling_factor=32.0, original_max_position_embeddings=4096)


def frequencies(network: OneLayer) -> Floats:
    return np.array(network.rope._freqs)  # pyright: ignore[reportPrivateUsage] - what mlx-lm calls them


def test_frequencies_are_mixed_between_the_places_of_both_betas():
    """The formula of the paper, one frequency at a time."""
    periods = yarn_periods(DIMS, THETA, SCALING)
    low, high = (DIMS * log(4096 / (turns * 2 * pi)) / (2 * log(THETA)) for turns in (32.0, 1.0))
    for place in range(DIMS // 2):
        frequency = THETA ** (-2 * place / DIMS)
        slowed = min(max((place - low) / (high - low), 0.0), 1.0)
        assert periods[place] == pytest.approx(1 / (slowed * frequency / 32 + (1 - slowed) * frequency), rel=1e-12)


def test_a_rounded_range_is_mlx_lms():
    network = OneLayer()
    before = frequencies(network)
    for settings in ({"rope_theta": THETA, "rope_scaling": SCALING}, {"rope_theta": THETA}, {"rope_scaling": None}):
        keep_yarn_range(network, settings)
        np.testing.assert_array_equal(frequencies(network), before)


def test_a_range_that_is_not_to_be_rounded_is_put_right():
    network = OneLayer()
    before = frequencies(network)
    keep_yarn_range(network, {"rope_theta": THETA, "rope_scaling": {**SCALING, "truncate": False}})
    after = frequencies(network)
    np.testing.assert_allclose(after, yarn_periods(DIMS, THETA, SCALING), rtol=1e-6)
    assert after.dtype == np.float32
    assert np.abs(after / before - 1).max() > 0.01
    assert mx.isfinite(network.rope(mx.ones((1, 1, 4, DIMS)))).all()
