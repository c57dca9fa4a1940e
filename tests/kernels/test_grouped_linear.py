"""Products with experts' weights against mlx's gather_mm and float64, for the shapes that mixtures of experts call them with."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import grouped_linear, linear, native
from mlx_bulk.kernels.quantized import QuantizedWeight

from ..rounded_numbers import rounded
from .without_compiler import remove_compiler

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

RTOL = 3e-6  # of the sum of absolute terms: float32's rounding of some hundred sums


def check(lead: tuple[int, ...], chosen: tuple[int, ...], experts: int, depth: int, columns: int, biased: bool, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (*lead, 1, depth)).astype(np.float32)
    weight = rng.normal(0, 1, (experts, columns, depth)).astype(np.float32)
    bias = mx.array(rng.normal(0, 1, (experts, columns)).astype(np.float32)) if biased else None
    indices = rng.integers(0, experts, chosen)
    arrays = mx.array(x), mx.array(weight), mx.array(indices.astype(np.uint32)), bias
    assert grouped_linear.suits(*arrays)
    found = np.array(grouped_linear.on_cpu(*arrays))
    own = weight[indices].astype(np.float64)  # [..., N, K]
    truth = (x.astype(np.float64) * own).sum(-1)[..., None, :] + (0 if bias is None else np.array(bias)[indices][..., None, :])
    scale = (np.abs(x) * np.abs(own)).sum(-1)[..., None, :] + 1
    assert found.shape == truth.shape
    assert (np.abs(found - truth) / scale).max() < RTOL
    assert (np.abs(found - np.array(grouped_linear.reference(*arrays))) / scale).max() < 2 * RTOL


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.integers(1, 6), st.integers(1, 70), st.integers(1, 70), st.booleans(), st.integers(0, 99))
def test_rows_in_a_line(rows: int, experts: int, depth: int, columns: int, biased: bool, seed: int):
    check((rows,), (rows,), experts, depth, columns, biased, seed)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("lead", "chosen"), [((2, 3, 1), (2, 3, 4)), ((2, 3, 4), (2, 3, 4)), ((1, 1, 1), (1, 1, 2)), ((70, 5, 1), (70, 5, 2))]
)
def test_positions_that_several_experts_share(lead: tuple[int, ...], chosen: tuple[int, ...], biased: bool):
    check(lead, chosen, 8, 40, 56, biased)


@pytest.mark.parametrize("rows", [2, 5, 70, 600])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_weights_give_the_same_bits(rows: int, biased: bool):
    rng = np.random.default_rng(0)
    x, weight = mx.array(rng.normal(0, 1, (rows, 1, 401)).astype(np.float32)), mx.array(rng.normal(0, 1, (3, 112, 401)).astype(np.float32))
    bias = mx.array(rng.normal(0, 1, (3, 112)).astype(np.float32)) if biased else None
    packed, indices = linear.packed(weight := rounded(weight), bias), mx.array(rng.integers(0, 3, (rows, 2)).astype(np.uint32))
    assert packed is not None
    assert linear.bytes_packed(weight) == packed.nbytes
    arrays = mx.expand_dims(x, 1), weight, indices, bias
    truth = grouped_linear.on_cpu(*arrays)
    assert np.array_equal(grouped_linear.on_cpu(*arrays, packed), truth)
    packed[:] = 0  # a product that reads it is wrong
    assert np.array_equal(grouped_linear.on_cpu(*arrays, packed), truth) == (2 * rows <= 4 and not native.tiles())


def test_experts_that_nobody_chose_are_not_touched():
    weight = np.full((9, 5, 3), np.nan, np.float32)
    weight[4] = 1
    out = grouped_linear.on_cpu(mx.ones((6, 1, 3)), mx.array(weight), mx.full((6,), 4, mx.int32))
    np.testing.assert_array_equal(out, np.full((6, 1, 5), 3, np.float32))


def test_a_row_does_not_depend_on_its_mates():
    """Deterministic mode's promise, to the bit: whether mates choose the same expert or others changes nothing."""
    x, weight = mx.random.normal((40, 1, 64)), mx.random.normal((4, 48, 64))
    indices = np.zeros(40, np.int32)
    alone, together = indices.copy(), indices.copy()
    alone[1:] = 1 + np.arange(39) % 3
    found = [np.array(grouped_linear.on_cpu(x, weight, mx.array(chosen)))[0] for chosen in (alone, together)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("x", "weight", "indices"),
    [
        (mx.zeros((6, 2, 8)), mx.zeros((3, 5, 8)), mx.zeros((6,), mx.int32)),  # two rows at once
        (mx.zeros((6, 1, 8)), mx.zeros((3, 5, 9)), mx.zeros((6,), mx.int32)),
        (mx.zeros((6, 1, 8)), mx.zeros((3, 5, 8)), mx.zeros((6,))),
        (mx.zeros((6, 1, 8)), mx.zeros((3, 5, 8)), mx.zeros((7,), mx.int32)),
        (mx.zeros((6, 1, 8), mx.float16), mx.zeros((3, 5, 8)), mx.zeros((6,), mx.int32)),
        (mx.zeros((2, 3, 1, 8)), mx.zeros((3, 5, 8)), mx.zeros((6,), mx.int32)),
    ],
)
def test_what_does_not_fit_does_not_suit(x: mx.array, weight: mx.array, indices: mx.array):
    assert not grouped_linear.suits(x, weight, indices)


def test_an_expert_that_is_not_there_is_an_error():
    with pytest.raises(IndexError, match="experts 0 to 3 of 3"):
        grouped_linear.on_cpu(mx.zeros((2, 1, 8)), mx.zeros((3, 5, 8)), mx.array([0, 3]))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("rows", [1, 4, 5, 90])  # calls of few products sum in another order
def test_experts_in_half_precision_have_the_bits_of_their_float32_copies(rows: int, dtype: mx.Dtype):
    rng = np.random.default_rng(rows)
    x, weight, bias = (mx.array(rng.normal(0, 1, shape).astype(np.float32)) for shape in ((rows, 1, 70), (6, 37, 70), (6, 37)))
    half, indices = weight.astype(dtype), mx.array(rng.integers(1, 6, rows).astype(np.uint32))
    assert grouped_linear.suits(x, half, indices, bias)
    for added in (None, bias):
        found = np.array(grouped_linear.on_cpu(x, half, indices, added))
        np.testing.assert_array_equal(found, np.array(grouped_linear.on_cpu(x, half.astype(mx.float32), indices, added)))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("lead", "chosen"), [((9,), (9,)), ((2, 3, 1), (2, 3, 4)), ((70, 5, 1), (70, 5, 2))])
def test_numpy_agrees_with_the_library(
    lead: tuple[int, ...], chosen: tuple[int, ...], biased: bool, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
):
    rng = np.random.default_rng(0)
    x, weight = (mx.array(rng.normal(0, 1, shape).astype(np.float32)) for shape in ((*lead, 1, 40), (8, 56, 40)))
    bias = mx.array(rng.normal(0, 1, (8, 56)).astype(np.float32)) if biased else None
    weight, indices = weight.astype(dtype), mx.array(rng.integers(0, 8, chosen).astype(np.uint32))
    by_library = np.array(grouped_linear.on_cpu(x, weight, indices, bias))
    remove_compiler(monkeypatch)
    assert grouped_linear.suits(x, weight, indices, bias)
    found = np.array(grouped_linear.on_cpu(x, weight, indices, bias))
    np.testing.assert_allclose(found, by_library, rtol=0, atol=RTOL * 40 * 4)


@pytest.mark.parametrize("rows", [1, 9, 90])
@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32), (3, 128)])
def test_quantized_experts(bits: int, group: int, rows: int):
    rng = np.random.default_rng(bits)
    whole = mx.array(rng.normal(0, 1, (5, 37, 256)).astype(np.float32))
    words, scales, biases = mx.quantize(whole, group, bits)
    weight = QuantizedWeight(words, scales, biases, bits, group)
    x, bias = (mx.array(rng.normal(0, 1, shape).astype(np.float32)) for shape in ((rows, 1, 256), (5, 37)))
    indices = mx.array(rng.integers(0, 5, rows).astype(np.uint32))
    assert grouped_linear.suits(x, weight, indices, bias)
    found = np.array(grouped_linear.on_cpu(x, weight, indices, bias))
    held = mx.dequantize(words, scales, biases, group, bits)
    for truth in (grouped_linear.on_cpu(x, held, indices, bias), grouped_linear.reference(x, weight, indices, bias)):
        np.testing.assert_allclose(found, np.array(truth), rtol=0, atol=RTOL * 256 * 4)
