"""Tests the CPU's activations and norm against their specifications."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import elementwise, native
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

Activation = Callable[..., mx.array]

ONE = [
    pytest.param(elementwise.silu_on_cpu, elementwise.reference_silu, id="silu"),
    pytest.param(elementwise.gelu_approx_on_cpu, elementwise.reference_gelu_approx, id="gelu_approx"),
]


def inputs() -> NDArray[np.float32]:
    return np.concatenate([np.linspace(-120, 120, 4001), np.random.default_rng(0).normal(0, 2, 4000)]).astype(np.float32)


@pytest.mark.parametrize(("fast", "reference"), ONE)
def test_agrees_with_the_specification(fast: Activation, reference: Activation):
    """Roundings of some float32 operations; mx's tanh form of gelu loses up to 1e-6 by 1 + tanh where that is close to 0."""
    x = mx.array(inputs())
    np.testing.assert_allclose(fast(x), reference(x), rtol=1e-6, atol=1e-6)


def test_swiglu_agrees_with_the_specification():
    gate = inputs()
    x = np.random.default_rng(1).normal(0, 2, gate.shape).astype(np.float32)
    fast, slow = (f(mx.array(gate), mx.array(x)) for f in (elementwise.swiglu_on_cpu, elementwise.reference_swiglu))
    np.testing.assert_allclose(fast, slow, rtol=4e-6, atol=1e-30)  # mx's exp is off by 3e-6 far below 0


def test_a_product_of_gelu_is_that_of_float64():
    x = inputs().astype(np.float64)
    with np.errstate(over="ignore"):
        truth = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(
        elementwise.gelu_approx_on_cpu(mx.array(inputs())), truth, rtol=2e-5, atol=1e-7
    )  # exp(z) carries z's rounding


def test_far_ends_are_zero_and_the_identity():
    x = mx.array([-1e6, -200.0, 0.0, 200.0, 1e6])
    for fast in (elementwise.silu_on_cpu, elementwise.gelu_approx_on_cpu):
        np.testing.assert_allclose(fast(x), [0, 0, 0, 200, 1e6], rtol=0, atol=1e-30)


def test_nan_stays():
    x = mx.array([np.nan, 1.0])
    for found in (elementwise.silu_on_cpu(x), elementwise.gelu_approx_on_cpu(x), elementwise.swiglu_on_cpu(x, mx.ones(2))):
        assert np.isnan(np.array(found)).tolist() == [True, False]


def test_halves_of_one_projection_give_the_same_as_copies():
    gate, x = mx.split(mx.random.normal((5, 3, 64)), 2, axis=-1)
    assert mx.array_equal(elementwise.swiglu_on_cpu(gate, x), elementwise.swiglu_on_cpu(mx.contiguous(gate), mx.contiguous(x)))


# ------------------------------------------------------------------------------------------------- RMS norm


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 16), (40, 1, 577), (5000, 33)])
def test_a_norm_agrees_with_the_specification(shape: tuple[int, ...]):
    x, weight = mx.random.normal(shape) * 3, mx.random.normal((shape[-1],))
    found = np.array(elementwise.rms_norm_on_cpu(x, weight, 1e-5))
    truth = np.array(x, np.float64)
    truth = truth / np.sqrt((truth**2).mean(axis=-1, keepdims=True) + 1e-5) * np.array(weight)
    np.testing.assert_allclose(found, truth, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(found, elementwise.reference_rms_norm(x, weight, 1e-5), rtol=4e-6, atol=1e-7)
    np.testing.assert_allclose(found, mx.fast.rms_norm(x, weight, 1e-5), rtol=4e-6, atol=1e-7)


def test_a_norms_eps_is_inside_the_root():
    np.testing.assert_allclose(
        elementwise.rms_norm_on_cpu(mx.full((1, 4), 1e-3), mx.ones(4), 1e-6), mx.full((1, 4), 1e-3 / 2e-6**0.5), rtol=1e-6
    )


def test_a_norm_of_zeros_is_zero_and_nan_stays_in_its_row():
    x = mx.array([[0.0] * 20, [1.0] * 20, [np.nan] + [1.0] * 19])
    found = np.array(elementwise.rms_norm_on_cpu(x, mx.ones(20), 1e-5))
    assert (found[0] == 0).all()
    assert np.isnan(found).all(axis=1).tolist() == [False, False, True]


def test_a_weight_of_another_width_does_not_suit():
    assert elementwise.suits_rms_norm(mx.zeros((3, 64)), mx.zeros(64))
    assert not elementwise.suits_rms_norm(mx.zeros((3, 64)), mx.zeros(32))
    assert not elementwise.suits_rms_norm(mx.zeros((3, 0)), mx.zeros(0))
