"""Each activation of the CPU against its specification."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import activations, native
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

Activation = Callable[..., mx.array]

ONE = [
    pytest.param(activations.silu_on_cpu, activations.reference_silu, id="silu"),
    pytest.param(activations.gelu_approx_on_cpu, activations.reference_gelu_approx, id="gelu_approx"),
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
    fast, slow = (f(mx.array(gate), mx.array(x)) for f in (activations.swiglu_on_cpu, activations.reference_swiglu))
    np.testing.assert_allclose(fast, slow, rtol=4e-6, atol=1e-30)  # mx's exp is off by 3e-6 far below 0


def test_a_product_of_gelu_is_that_of_float64():
    x = inputs().astype(np.float64)
    with np.errstate(over="ignore"):
        truth = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(
        activations.gelu_approx_on_cpu(mx.array(inputs())), truth, rtol=2e-5, atol=1e-7
    )  # exp(z) carries z's rounding


def test_far_ends_are_zero_and_the_identity():
    x = mx.array([-1e6, -200.0, 0.0, 200.0, 1e6])
    for fast in (activations.silu_on_cpu, activations.gelu_approx_on_cpu):
        np.testing.assert_allclose(fast(x), [0, 0, 0, 200, 1e6], rtol=0, atol=1e-30)


def test_nan_stays():
    x = mx.array([np.nan, 1.0])
    for found in (activations.silu_on_cpu(x), activations.gelu_approx_on_cpu(x), activations.swiglu_on_cpu(x, mx.ones(2))):
        assert np.isnan(np.array(found)).tolist() == [True, False]


def test_halves_of_one_projection_give_the_same_as_copies():
    gate, x = mx.split(mx.random.normal((5, 3, 64)), 2, axis=-1)
    assert mx.array_equal(activations.swiglu_on_cpu(gate, x), activations.swiglu_on_cpu(mx.contiguous(gate), mx.contiguous(x)))
