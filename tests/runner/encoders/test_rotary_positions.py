"""Angles of far positions: products of float32 numbers, as transformers and others compute them."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.encoders.attention import RotaryPositions

FAR, DIMS = 8192, 64


@pytest.mark.parametrize("theta", [1000.0, 10_000.0, 160_000.0])
def test_far_positions_turn_as_in_other_libraries(theta: float) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, FAR, DIMS)).astype(np.float32)
    radians = np.float32(1) / (theta ** (np.arange(0, DIMS, 2) / DIMS)).astype(np.float32)
    angles = (np.arange(FAR, dtype=np.float32)[:, None] * radians).astype(np.float64)
    a, b = np.split(x, 2, axis=-1)
    expected = np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], axis=-1)
    # Sines and cosines in float32, of numbers up to 5. A radian that is one ulp off would move them by 1e-3 here.
    np.testing.assert_allclose(np.array(RotaryPositions(DIMS, theta)(mx.array(x))), expected, rtol=0, atol=2e-6)
