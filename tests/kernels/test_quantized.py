"""Tests products with quantized weights against float64 and against the same numbers as float32: for all bits, groups and odd shapes."""

import platform
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import backend, fused_logprobs, linear, native
from mlx_bulk.kernels.fused_logprobs import Product
from mlx_bulk.kernels.quantized import BITS, QuantizedWeight
from numpy.typing import NDArray

from .cpu.test_vector_units import python

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

RTOL = 3e-6  # of the sum of absolute terms: float32's rounding of some thousand sums
bits_and_group = st.sampled_from([(bits, group) for bits in BITS for group in (32, 64, 128)])
units = pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux" or not backend.compiles(), reason="x86-64 and g++")


def random_weight(n: int, depth: int, bits: int, group: int, seed: int = 0) -> QuantizedWeight:
    """Random words, with scales and biases of half precision, as checkpoints have them."""
    rng = np.random.default_rng([seed, n, depth, bits])
    words = rng.integers(0, 1 << 32, (n, depth * bits // 32), dtype=np.uint32)
    scales, biases = (mx.array(rng.normal(0, 1, (n, depth // group)).astype(np.float16).astype(np.float32)) for _ in range(2))
    return QuantizedWeight(mx.array(words), scales, biases, bits, group)


def numbers(weight: QuantizedWeight) -> NDArray[np.float64]:
    """The specification: a row is one string of bits, the lowest first, and a number is scale * q + bias."""
    n, depth = weight.shape
    bits = np.unpackbits(np.array(weight.words).view(np.uint8), axis=1, bitorder="little").reshape(n, depth, weight.bits)
    q = (bits.astype(np.float64) * 2.0 ** np.arange(weight.bits)).sum(-1)
    scales, biases = (np.repeat(np.array(array, np.float64), weight.group, axis=1) for array in (weight.scales, weight.biases))
    return q * scales + biases


def random_rows(rows: int, depth: int) -> mx.array:
    return mx.array(np.random.default_rng(rows).normal(0, 1, (rows, depth)).astype(np.float32))


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 70), st.integers(1, 5), st.integers(1, 200), bits_and_group, st.booleans(), st.integers(0, 99))
def test_any_shape(rows: int, groups: int, n: int, kind: tuple[int, int], biased: bool, seed: int):
    bits, group = kind
    weight, x = random_weight(n, groups * group, bits, group, seed), random_rows(rows, groups * group)
    bias = random_rows(1, n)[0] if biased else None
    assert linear.suits(x, weight, bias)
    found, own = np.array(linear.on_cpu(x, weight, bias)), numbers(weight)
    truth = np.array(x, np.float64) @ own.T + (0 if bias is None else np.array(bias))
    scale = np.abs(np.array(x)) @ np.abs(own.T) + 1
    assert (np.abs(found - truth) / scale).max() < RTOL
    assert (np.abs(found - np.array(linear.reference(x, weight, bias))) / scale).max() < 2 * RTOL


@pytest.mark.parametrize("bits", BITS)
def test_bits_are_those_of_the_weight_as_float32(bits: int):
    """Where products run in vectors and more than 4 rows come, which float32 weights are multiplied with in the same order."""
    weight, x = random_weight(70, 2048 + 384, bits, 128), random_rows(9, 2048 + 384)
    whole = mx.dequantize(*weight.arrays, weight.group, bits)
    np.testing.assert_array_equal(np.array(whole), numbers(weight).astype(np.float32))
    found, truth = np.array(linear.on_cpu(x, weight)), np.array(linear.on_cpu(x, whole))
    if native.tiles():
        np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5 * float(np.abs(truth).max()))
    else:
        np.testing.assert_array_equal(found, truth)


def test_a_row_does_not_depend_on_other_rows():
    weight, x = random_weight(100, 192, 4, 64), random_rows(200, 192)
    many = linear.on_cpu(x, weight)
    for rows in (1, 3, 4, 5, 8, 33):
        assert mx.array_equal(linear.on_cpu(x[:rows], weight), many[:rows])


CODE = """
from mlx_bulk.kernels import backend
mx = backend.load_mlx()
from mlx_bulk.kernels import linear
from mlx_bulk.kernels.quantized import BITS, QuantizedWeight
mx.random.seed(0)
worst = 0.0
for bits in BITS:
    weight = QuantizedWeight(*mx.quantize(mx.random.normal((103, 320)), 32, bits), bits, 32)
    many = linear.on_cpu(x := mx.random.normal((200, 320)), weight)
    worst = max(worst, float(mx.abs(many - linear.reference(x, weight)).max()))
    assert all(mx.array_equal(linear.on_cpu(x[:rows], weight), many[:rows]) for rows in (1, 4, 5, 13, 193))
print(worst < 2e-4)
"""


@units
@pytest.mark.slow  # each has the kernels compiled once more
@pytest.mark.parametrize("tier", ["avx2", "avx512"])
def test_each_tier_computes_the_same(tmp_path: Path, tier: str):
    assert python(CODE, tmp_path, MLX_BULK_CPU=tier) == "True\n"


@pytest.mark.parametrize("vocabulary", [1, 257, 1000])
@pytest.mark.parametrize("rows", [1, 33, 193])
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_a_quantized_head_scores_without_logits(rows: int, vocabulary: int, cap: float):
    weight, x = random_weight(vocabulary, 128, 4, 64), random_rows(rows, 128)
    of = Product(x, weight, random_rows(1, vocabulary)[0], cap)
    assert fused_logprobs.suits(of)
    targets = np.random.default_rng(0).integers(0, vocabulary, rows).astype(np.int32)
    found, truth = (
        fused_logprobs.on_cpu(of, np.ones(rows, np.intp), targets, greedy=True),
        fused_logprobs.reference(of, targets, greedy=True),
    )
    np.testing.assert_allclose(found.logprobs, truth.logprobs, rtol=0, atol=1e-3)  # of logits of some hundred
    if not cap:  # large logits are equal then
        np.testing.assert_array_equal(found.greedy, truth.greedy)  # pyright: ignore[reportArgumentType]


def test_what_the_library_does_not_take_is_left_to_mlx():
    whole, x = random_weight(8, 64, 4, 32), random_rows(2, 64)
    assert linear.suits(x, whole)
    half = QuantizedWeight(whole.words, whole.scales.astype(mx.float16), whole.biases.astype(mx.float16), 4, 32)
    assert not linear.suits(x, half)
    assert not linear.suits(x.astype(mx.float16), half)
    assert not linear.suits(random_rows(2, 96), whole)
    assert not linear.suits(x, QuantizedWeight(whole.words, whole.scales, whole.biases, 4, 16))


def test_some_rows_of_a_weight():
    weight, x = random_weight(8, 64, 4, 32), random_rows(2, 64)
    rows = mx.array([5, 0, 5])
    np.testing.assert_array_equal(linear.on_cpu(x, weight[rows]), linear.on_cpu(x, weight)[:, rows])
