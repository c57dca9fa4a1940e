"""Tests logprobs of a product that is never stored: the bits are those from its logits, NaN and infinities too."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import backend, fused_logprobs, linear, logprobs, native
from mlx_bulk.kernels.fused_logprobs import Product
from mlx_bulk.kernels.logprobs import Scores
from numpy.typing import NDArray

from ..rounded_numbers import rounded

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(np.float32)


def product(x: Floats, weight: Floats, bias: Floats | None = None) -> Product:
    return Product(mx.array(x), mx.array(weight), None if bias is None else mx.array(bias))


def kept(of: Product, rows: NDArray[np.intp], targets: Ints) -> Scores:
    """By an array of logits."""
    logits = np.array(linear.on_cpu(of.x, of.weight, of.bias))
    return logprobs.on_cpu(logits[rows], targets, 0, False, greedy=True)


def assert_equal(found: Scores, truth: Scores):
    np.testing.assert_array_equal(found.logprobs, truth.logprobs)
    np.testing.assert_array_equal(found.greedy, truth.greedy)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("rows", [1, 16, 33, 192, 193, 400])
@pytest.mark.parametrize("vocabulary", [1, 31, 255, 256, 257, 300, 1000])
@pytest.mark.parametrize("depth", [1, 40, 769])
def test_bits_are_those_of_logits_that_are_kept(rows: int, vocabulary: int, depth: int):
    rng = np.random.default_rng(rows)
    counts = rng.integers(0, 4, rows)
    counts[-1] = 3
    at = np.repeat(np.arange(rows), counts)
    targets = rng.integers(0, vocabulary, len(at)).astype(np.int32)
    targets[-2:] = 0, vocabulary - 1
    for bias in (None, normal(vocabulary)):
        of = product(normal(rows, depth), normal(vocabulary, depth, seed=1), bias)
        assert_equal(fused_logprobs.on_cpu(of, counts, targets, greedy=True), kept(of, at, targets))


SPAN = 3 * 256 * backend.threads()  # logits of a task for each thread; with three times as many tasks read the packed weight


@pytest.mark.parametrize("rows", [3, 16, 200])
@pytest.mark.parametrize("vocabulary", [16, 768, 3 * SPAN, 3 * SPAN + 16, 4 * SPAN + 272])
def test_a_packed_weight_gives_the_same_bits(rows: int, vocabulary: int):
    targets = np.random.default_rng(rows).integers(0, vocabulary, rows).astype(np.int32)
    for bias in (None, normal(vocabulary)):
        for cap in (0.0, 3.0):
            of = replace(product(normal(rows, 401), normal(vocabulary, 401, seed=1), bias), cap=cap)
            of = replace(of, weight=rounded(of.weight))  # pyright: ignore[reportArgumentType]
            packing = linear.packed(of.weight, of.bias)  # pyright: ignore[reportArgumentType]
            assert packing is not None
            packed, once = replace(of, packing=packing), np.ones(rows, np.intp)
            assert_equal(fused_logprobs.on_cpu(packed, once, targets, greedy=True), fused_logprobs.on_cpu(of, once, targets, greedy=True))
            packing[:] = 1e30  # a product that reads it is wrong
            reads = native.tiles() or (rows > 4 and vocabulary >= 3 * SPAN)
            spoilt = fused_logprobs.on_cpu(packed, once, targets, greedy=True).logprobs
            assert np.array_equal(spoilt, fused_logprobs.on_cpu(of, once, targets, greedy=True).logprobs) != reads


def test_a_large_vocabulary_loses_no_precision():
    rows, vocabulary, depth = 40, 50_257, 64
    x, weight = normal(rows, depth), normal(vocabulary, depth, seed=1)
    targets = np.random.default_rng(0).integers(0, vocabulary, rows).astype(np.int32)
    targets[::4] = (x @ weight.T).argmax(axis=1)[::4]
    logits = x.astype(np.float64) @ weight.T.astype(np.float64)
    truth = logits[np.arange(rows), targets] - np.log(np.exp(logits).sum(axis=1))
    of = product(x, weight)
    found = fused_logprobs.on_cpu(of, np.ones(rows, np.intp), targets, greedy=True)
    # Sums of 64 products of up to 10. In vectors each is rounded after every product, in tiles after every second one.
    np.testing.assert_allclose(found.logprobs, truth, rtol=0, atol=1e-5 if native.tiles() else 2e-5)
    np.testing.assert_array_equal(found.greedy, logits.argmax(axis=1) == targets)  # pyright: ignore[reportArgumentType]
    reference = fused_logprobs.reference(of, targets, greedy=True)
    np.testing.assert_allclose(found.logprobs, reference.logprobs, rtol=0, atol=3e-5)
    np.testing.assert_array_equal(found.greedy, reference.greedy)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("vocabulary", [1, 255, 300, 1000])
def test_capped_logits(vocabulary: int):
    """tanh is rounded to 3e-7 of it: 1e-5 of logits up to 5."""
    rows = 40
    of = replace(product(6 * normal(rows, 64), normal(vocabulary, 64, seed=1)), cap=5.0)
    targets = np.random.default_rng(0).integers(0, vocabulary, rows).astype(np.int32)
    targets[-1] = vocabulary - 1
    logits = 5 * np.tanh(np.array(of.x, np.float64) @ np.array(of.weight, np.float64).T / 5)
    truth = logits[np.arange(rows), targets] - np.log(np.exp(logits).sum(axis=1))
    assert np.abs(logits).max() > 4.99 or vocabulary == 1
    found = fused_logprobs.on_cpu(of, np.ones(rows, np.intp), targets)
    np.testing.assert_allclose(found.logprobs, truth, rtol=0, atol=1e-5)
    np.testing.assert_allclose(fused_logprobs.reference(of, targets).logprobs, truth, rtol=0, atol=1e-5)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_row_without_numbers_comes_out_as_nan_and_spares_the_others(odd: float):
    x, weight = normal(40, 8), normal(600, 8, seed=1)
    targets, ones = np.arange(40, dtype=np.int32), np.ones(40, np.intp)
    truth = fused_logprobs.on_cpu(product(x, weight), ones, targets)
    x[[3, 39], 2] = odd
    found = fused_logprobs.on_cpu(product(x, weight), ones, targets)
    assert np.isnan(found.logprobs[[3, 39]]).all()
    others = np.delete(np.arange(40), [3, 39])
    np.testing.assert_array_equal(found.logprobs[others], truth.logprobs[others])


@pytest.mark.parametrize("ids", [[5], [0, 599], list(range(256, 512)), list(range(600))])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_ids_that_a_bias_makes_no_numbers_of(ids: list[int], odd: float):
    bias = normal(600)
    bias[ids] = odd
    of = product(normal(7, 8), normal(600, 8, seed=1), bias)
    targets = np.array([0, 5, 255, 256, 511, 598, 599], np.int32)
    found = fused_logprobs.on_cpu(of, np.ones(7, np.intp), targets, greedy=True)
    assert_equal(found, kept(of, np.arange(7), targets))
    if odd == -np.inf and len(ids) < 600:
        np.testing.assert_array_equal(np.isneginf(found.logprobs), np.isin(targets, ids))
    else:
        assert np.isnan(found.logprobs).all()


def test_equals_go_to_the_lower_id():
    weight = np.tile(normal(1, 8), (700, 1))
    of = product(np.abs(normal(5, 8)), weight)
    targets = np.array([0, 1, 0, 256, 699], np.int32)
    assert fused_logprobs.on_cpu(of, np.ones(5, np.intp), targets, greedy=True).greedy.tolist() == [True, False, True, False, False]  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(("field", "value"), [("x", mx.zeros((2, 8), mx.float16)), ("weight", mx.zeros((9, 7))), ("bias", mx.zeros(8))])
def test_inputs_it_is_not_made_for_are_left_to_others(field: str, value: mx.array):
    given: dict[str, Any] = {"x": mx.zeros((2, 8)), "weight": mx.zeros((9, 8)), "bias": mx.zeros(9)}
    assert fused_logprobs.suits(Product(**given))
    changed: dict[str, Any] = given | {field: value}
    assert not fused_logprobs.suits(Product(**changed))


@pytest.mark.parametrize("target", [-1, 9])
def test_a_target_that_is_no_column_is_an_error(target: int):
    with pytest.raises(IndexError, match="in logits of 9"):
        fused_logprobs.on_cpu(product(normal(2, 8), normal(9, 8)), np.ones(2, np.intp), np.array([0, target], np.int32))
