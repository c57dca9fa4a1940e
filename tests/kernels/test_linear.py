"""Tests products of few rows against mx's and float64, for shapes that fill no panel."""

import math
import warnings

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import backend, linear, native

from ..rounded_numbers import rounded

with_library = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

RTOL = 3e-6  # of the sum of absolute terms: float32's rounding of some thousand sums


def check(rows: int, depth: int, columns: int, biased: bool, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(0, 1, (rows, depth)).astype(np.float32), rng.normal(0, 1, (columns, depth)).astype(np.float32)
    bias = rng.normal(0, 1, columns).astype(np.float32) if biased else None
    found = np.array(linear.on_cpu(mx.array(x), mx.array(weight), None if bias is None else mx.array(bias)))
    truth = x.astype(np.float64) @ weight.T.astype(np.float64) + (0 if bias is None else bias)
    scale = np.abs(x).astype(np.float64) @ np.abs(weight.T) + 1
    assert (np.abs(found - truth) / scale).max() < RTOL
    reference = linear.reference(mx.array(x), mx.array(weight), None if bias is None else mx.array(bias))
    assert (np.abs(found - np.array(reference)) / scale).max() < 2 * RTOL


@with_library
@settings(max_examples=80, deadline=None)
@given(st.integers(1, 70), st.integers(1, 200), st.integers(1, 200), st.booleans(), st.integers(0, 99))
def test_any_shape(rows: int, depth: int, columns: int, biased: bool, seed: int):
    check(rows, depth, columns, biased, seed)


@with_library
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 9, 33, 256])
def test_shapes_of_models(rows: int):
    check(rows, 576, 1536, biased=False)
    check(rows, 4099, 50, biased=True)  # a row of more than a panel takes at once


@with_library
@pytest.mark.parametrize(("columns", "depth"), [(16, 3), (48, 40), (112, 700), (592, 384)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_weight_gives_the_same_bits(columns: int, depth: int, biased: bool):
    rng = np.random.default_rng(0)
    weight, bias = (mx.array(rng.normal(0, 1, shape).astype(np.float32)) for shape in ((columns, depth), (columns,)))
    chosen = bias if biased else None
    packed = linear.packed(weight := rounded(weight), chosen)
    assert packed is not None
    assert linear.bytes_packed(weight) == packed.nbytes
    for rows in (1, 4, 5, 8, 32, 33, 200):
        x = mx.array(rng.normal(0, 1, (rows, depth)).astype(np.float32))
        assert np.array_equal(linear.on_cpu(x, weight, chosen, packed), linear.on_cpu(x, weight, chosen))


@with_library
def test_a_weight_that_fills_no_vector_or_is_not_float32_is_not_packed():
    assert linear.packs(mx.zeros((32, 7)))
    assert not linear.packs(mx.zeros((33, 7)))
    assert not linear.packs(mx.zeros((32, 7), mx.float16))


@with_library
def test_leading_axes_stay():
    x, weight = mx.random.normal((3, 1, 2, 40)), mx.random.normal((7, 40))
    np.testing.assert_allclose(linear.on_cpu(x, weight), linear.reference(x, weight), rtol=0, atol=1e-4)


@with_library
def test_views_give_the_same_as_copies():
    x, weight = mx.random.normal((6, 2, 32))[:, 1], mx.random.normal((32, 24)).T
    found = linear.on_cpu(x, weight)
    assert mx.array_equal(found, linear.on_cpu(mx.contiguous(x), mx.contiguous(weight)))


@with_library
def test_a_row_does_not_depend_on_other_rows():
    """Deterministic mode's promise, to the bit."""
    x, weight = mx.random.normal((9, 100)), mx.random.normal((70, 100))
    other = mx.concatenate([x[:1], mx.random.normal((8, 100)) * 1e3])
    assert mx.array_equal(linear.on_cpu(x, weight)[0], linear.on_cpu(other, weight)[0])


@with_library
def test_a_row_has_the_same_bits_among_any_number_of_rows():
    """However rows are cut into tiles; calls of up to 4 rows sum in another order."""
    x, weight, bias = mx.random.normal((210, 100)), mx.random.normal((170, 100)), mx.random.normal((170,))
    every = linear.on_cpu(x, weight, bias)
    for rows in (*range(5, 40), 192, 193, 200):
        assert mx.array_equal(linear.on_cpu(x[:rows], weight, bias), every[:rows]), rows


@with_library
def test_nan_stays_in_its_row():
    x = mx.random.normal((9, 100))
    x[4, 7] = mx.nan
    found = np.isnan(np.array(linear.on_cpu(x, mx.random.normal((70, 100)))))
    assert np.flatnonzero(found.all(axis=1)).tolist() == np.flatnonzero(found.any(axis=1)).tolist() == [4]


@with_library
@pytest.mark.parametrize(
    ("x", "suited"),
    [
        (mx.zeros((1, 8)), True),
        (mx.zeros((3000, 8)), True),
        (mx.zeros((0, 8)), False),
        (mx.zeros((2, 8), mx.float16), False),
    ],
)
def test_any_number_of_rows_of_float32_suits(x: mx.array, suited: bool):
    assert linear.suits(x, mx.zeros((3, 8))) == suited


@with_library
@pytest.mark.parametrize("bias", [mx.zeros(3, mx.bfloat16), mx.array(0.5), mx.zeros(4)])
def test_a_bias_of_another_kind_does_not_suit(bias: mx.array):
    assert not linear.suits(mx.zeros((2, 8)), mx.zeros((3, 8)), bias)
    assert linear.suits(mx.zeros((2, 8)), mx.zeros((3, 8)), mx.zeros(3))


@with_library
def test_a_weight_of_another_width_does_not_suit():
    assert not linear.suits(mx.zeros((2, 64)), mx.zeros((3, 32)))


@pytest.mark.cpu_path("NumPy multiplies where mlx has its own slow BLAS")
@pytest.mark.usefixtures("numpy_alone")
def test_numpy_multiplies_where_there_is_nothing_else():
    check(300, 70, 50, biased=True)
    check(1, 200, 9, biased=False)
    x, weight = mx.random.normal((3, 2, 40)), mx.random.normal((7, 40))
    assert linear.suits(x, weight)
    np.testing.assert_allclose(linear.on_cpu(x, weight), linear.reference(x, weight), rtol=0, atol=1e-4)
    assert not linear.suits(x.astype(mx.float16), weight)
    assert not linear.suits(x, weight, mx.zeros(8))


@pytest.mark.cpu_path("NumPy multiplies where mlx has its own slow BLAS")
def test_numpy_stays_away_from_a_fast_blas(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(backend, "prepare", lambda: backend.Blas("/usr/lib/libopenblas.so.0"))
    assert not linear.suits(mx.ones((3, 40)), mx.ones((7, 40)))


@pytest.mark.cpu_path("NumPy multiplies where mlx has its own slow BLAS")
def test_numpy_says_nothing_of_numbers_that_are_not_finite(monkeypatch: pytest.MonkeyPatch):
    """As mlx and the library: a run tells of such rows by itself."""
    monkeypatch.setattr(native, "library", lambda: None)
    x, weight = mx.array([[math.inf, -math.inf], [3e38, 3e38], [1.0, 2.0]]), mx.full((20, 2), 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = np.array(linear.on_cpu(x, weight, mx.ones(20)))
    np.testing.assert_array_equal(found[:, 0], [math.nan, math.inf, 7.0])
