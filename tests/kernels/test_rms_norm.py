"""The norm of the CPU against its specification, mx's own and float64."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native, rms_norm

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 16), (40, 1, 577), (5000, 33)])
def test_agrees_with_the_specification(shape: tuple[int, ...]):
    x, weight = mx.random.normal(shape) * 3, mx.random.normal((shape[-1],))
    found = np.array(rms_norm.on_cpu(x, weight, 1e-5))
    truth = np.array(x, np.float64)
    truth = truth / np.sqrt((truth**2).mean(axis=-1, keepdims=True) + 1e-5) * np.array(weight)
    np.testing.assert_allclose(found, truth, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(found, rms_norm.reference(x, weight, 1e-5), rtol=4e-6, atol=1e-7)
    np.testing.assert_allclose(found, mx.fast.rms_norm(x, weight, 1e-5), rtol=4e-6, atol=1e-7)


def test_eps_is_inside_the_root():
    np.testing.assert_allclose(rms_norm.on_cpu(mx.full((1, 4), 1e-3), mx.ones(4), 1e-6), mx.full((1, 4), 1e-3 / 2e-6**0.5), rtol=1e-6)


def test_zeros_stay_and_nan_stays_in_its_row():
    x = mx.array([[0.0] * 20, [1.0] * 20, [np.nan] + [1.0] * 19])
    found = np.array(rms_norm.on_cpu(x, mx.ones(20), 1e-5))
    assert (found[0] == 0).all()
    assert np.isnan(found).all(axis=1).tolist() == [False, False, True]


def test_a_weight_of_another_width_does_not_suit():
    assert rms_norm.suits(mx.zeros((3, 64)), mx.zeros(64))
    assert not rms_norm.suits(mx.zeros((3, 64)), mx.zeros(32))
    assert not rms_norm.suits(mx.zeros((3, 0)), mx.zeros(0))
