"""Tests the CPU's activations and norm against their specifications."""

import math
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
    pytest.param(elementwise.gelu_on_cpu, elementwise.reference_gelu, id="gelu"),
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


def test_swiglu_overflows_only_where_its_result_does():
    """Far below 0 the gate is divided by 1.65e38 at most, as the kernel says."""
    gate, x = np.array([-1e20, -200, -1e3], np.float32), np.array([1e20, 1e37, 1e38], np.float32)
    found = np.array(elementwise.swiglu_on_cpu(mx.array(gate), mx.array(x)))
    np.testing.assert_allclose(found, gate.astype(np.float64) * x / (1 + np.exp(88.0)), rtol=1e-5)


def test_clamped_swiglu_is_that_of_float64():
    gate = np.concatenate([inputs(), [np.nan, 0.0, np.inf, -np.inf]]).astype(np.float32)
    x = np.random.default_rng(1).normal(0, 6, gate.shape).astype(np.float32)
    x[-3:] = np.nan, np.inf, -np.inf
    slope, limit = 1.702, 7.0
    g, y = np.minimum(gate.astype(np.float64), limit), np.clip(x.astype(np.float64), -limit, limit)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = g / (1 + np.exp(-slope * g)) * (y + 1)
    found, slow = (
        np.array(f(mx.array(gate), mx.array(x), slope, limit))
        for f in (elementwise.clamped_swiglu_on_cpu, elementwise.reference_clamped_swiglu)
    )
    # Far below 0 the exponent is rounded to 1e-5 of the value
    np.testing.assert_allclose(found[:-1], truth[:-1], rtol=2e-5, atol=1e-30)
    np.testing.assert_allclose(found[:-1], slow[:-1], rtol=2e-5, atol=1e-30)


def test_geglu_agrees_with_the_specification():
    gate = inputs()
    x = np.random.default_rng(1).normal(0, 2, gate.shape).astype(np.float32)
    fast, slow = (f(mx.array(gate), mx.array(x)) for f in (elementwise.geglu_on_cpu, elementwise.reference_geglu))
    np.testing.assert_allclose(fast, slow, rtol=1e-6, atol=4e-6)  # mx's 1 + erf loses its last digits where erf is close to -1


def test_gelu_is_that_of_float64_over_its_whole_range():
    """The share of the normal distribution below x is known to 1e-16 by erfc, which has no 1 + erf that cancels."""
    x = np.concatenate([np.linspace(-12, 12, 100_001), np.logspace(-35, 1, 5001), -np.logspace(-35, 1, 5001)]).astype(np.float32)
    truth = np.array([value * math.erfc(-value / math.sqrt(2)) / 2 for value in x.tolist()])
    error = np.abs(np.array(elementwise.gelu_on_cpu(mx.array(x)), np.float64) - truth)
    right, left = x >= 0, (x < 0) & (x >= -6)
    assert (error[right] <= 2.5e-7 * truth[right]).all()
    assert (error[left] <= 5e-7 * (1 - x[left]) * -truth[left]).all()  # the rounding of x alone moves the value by 6e-8 · (1 + x²)
    assert error[x < -6].max() < 1e-13


def test_a_product_of_gelu_is_that_of_float64():
    x = inputs().astype(np.float64)
    with np.errstate(over="ignore"):
        truth = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(
        elementwise.gelu_approx_on_cpu(mx.array(inputs())), truth, rtol=2e-5, atol=1e-7
    )  # exp(z) carries z's rounding


def test_far_ends_are_zero_and_the_identity():
    x = mx.array([-1e6, -200.0, 0.0, 200.0, 1e6])
    for fast in (elementwise.silu_on_cpu, elementwise.gelu_approx_on_cpu, elementwise.gelu_on_cpu):
        np.testing.assert_allclose(fast(x), [0, 0, 0, 200, 1e6], rtol=0, atol=1e-30)


def test_nan_stays():
    x = mx.array([np.nan, 1.0])
    alone = [fast(x) for fast in (elementwise.silu_on_cpu, elementwise.gelu_approx_on_cpu, elementwise.gelu_on_cpu)]
    for found in [*alone, elementwise.swiglu_on_cpu(x, mx.ones(2)), elementwise.geglu_on_cpu(x, mx.ones(2))]:
        assert np.isnan(np.array(found)).tolist() == [True, False]


def test_halves_of_one_projection_give_the_same_as_copies():
    gate, x = mx.split(mx.random.normal((5, 3, 64)), 2, axis=-1)
    assert mx.array_equal(elementwise.swiglu_on_cpu(gate, x), elementwise.swiglu_on_cpu(mx.contiguous(gate), mx.contiguous(x)))


# ------------------------------------------------------------------------------------------------- RMS norm


@pytest.mark.parametrize("more", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 16), (40, 1, 577), (5000, 33)])
def test_a_norm_agrees_with_the_specification(shape: tuple[int, ...], more: float):
    x, weight = mx.random.normal(shape) * 3, mx.random.normal((shape[-1],))
    found = np.array(elementwise.rms_norm_on_cpu(x, weight, 1e-5, more))
    truth = np.array(x, np.float64)
    truth = truth / np.sqrt((truth**2).mean(axis=-1, keepdims=True) + 1e-5) * (np.array(weight, np.float64) + more)
    np.testing.assert_allclose(found, truth, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(found, elementwise.reference_rms_norm(x, weight, 1e-5, more), rtol=4e-6, atol=1e-7)
    np.testing.assert_allclose(found, mx.fast.rms_norm(x, weight + more, 1e-5), rtol=4e-6, atol=1e-7)


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


# ------------------------------------------------------------------------------------------------- layer norm


@pytest.mark.parametrize(("weighted", "biased"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 5, 16), (40, 1, 577), (5000, 33), (4, 384)])
def test_a_layer_norm_agrees_with_the_specification(shape: tuple[int, ...], weighted: bool, biased: bool):
    """Around 5: a variance as the mean of squares less the square of the mean would be off by 1e-5."""
    x = mx.random.normal(shape) * 3 + 5
    weight, bias = (mx.random.normal((shape[-1],)) if there else None for there in (weighted, biased))
    found = np.array(elementwise.layer_norm_on_cpu(x, weight, bias, 1e-5))
    truth = np.array(x, np.float64)
    truth -= truth.mean(axis=-1, keepdims=True)
    truth = truth / np.sqrt((truth**2).mean(axis=-1, keepdims=True) + 1e-5)
    truth = truth * (1.0 if weight is None else np.array(weight)) + (0.0 if bias is None else np.array(bias))
    np.testing.assert_allclose(found, truth, rtol=2e-6, atol=4e-6)
    np.testing.assert_allclose(found, elementwise.reference_layer_norm(x, weight, bias, 1e-5), rtol=4e-6, atol=8e-6)
    np.testing.assert_allclose(found, mx.fast.layer_norm(x, weight, bias, 1e-5), rtol=4e-6, atol=8e-6)


def test_a_layer_norm_far_from_zero_keeps_its_digits():
    """A mean of 1,000 and a spread of 1: 1e-4 of rounding in the inputs, and not much more in the result."""
    rng = np.random.default_rng(0)
    x = (1000 + rng.normal(0, 1, (50, 384))).astype(np.float32)
    truth = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    truth /= np.sqrt((truth**2).mean(axis=-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(elementwise.layer_norm_on_cpu(mx.array(x), None, None, 1e-12), truth, rtol=0, atol=1e-4)


def test_a_layer_norm_of_one_value_is_its_bias_and_nan_stays_in_its_row():
    x = mx.array([[4.0] * 20, [*range(20)], [np.nan] + [1.0] * 19])
    found = np.array(elementwise.layer_norm_on_cpu(x, mx.ones(20), mx.full(20, 0.5), 1e-5))
    assert (found[0] == 0.5).all()
    assert np.isnan(found).all(axis=1).tolist() == [False, False, True]


def test_a_layer_norms_weight_or_bias_of_another_width_does_not_suit():
    x = mx.zeros((3, 64))
    assert elementwise.suits_layer_norm(x, mx.zeros(64), None)
    assert elementwise.suits_layer_norm(x, None, None)
    assert not elementwise.suits_layer_norm(x, mx.zeros(32), None)
    assert not elementwise.suits_layer_norm(x, mx.zeros(64), mx.zeros(1))
    assert not elementwise.suits_layer_norm(x.astype(mx.float16), mx.zeros(64), None)
