"""Tests products in tiles: their error, what a row's bits depend on, and numbers that cannot be split."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import linear, native
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(not native.tiles(), reason="it serves processors that multiply in tiles")

Floats = NDArray[np.floating[Any]]
ROWS = [1, 5, 16, 17, 32, 33, 192, 193, 400]  # within a tile, two, what is packed at once, and behind it
EPS = 2.0**-24  # what rounding to float32 takes of a number, at most


def product(x: Floats, weight: Floats, bias: Floats | None = None) -> Floats:
    return np.array(linear.on_cpu(mx.array(x), mx.array(weight), None if bias is None else mx.array(bias)))


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(np.float32)


def exact(x: Floats, weight: Floats) -> NDArray[np.float64]:
    return x.astype(np.float64) @ weight.T.astype(np.float64)


def sizes(x: Floats, weight: Floats) -> NDArray[np.float64]:
    """Sums of the products' magnitudes."""
    return exact(np.abs(x), np.abs(weight))


def added_up(x: Floats, weight: Floats) -> Floats:
    """A plain loop in float32."""
    found = np.zeros((len(x), len(weight)), np.float32)
    for k in range(x.shape[1]):
        found += x[:, k, None] * weight[:, k]
    return found


@pytest.mark.parametrize("depth", [40, 100, 576, 768, 769, 800, 1600, 4099])
@pytest.mark.parametrize("positive", [False, True])
def test_an_error_is_below_that_of_a_plain_loop(depth: int, positive: bool):
    """It is about half of it where rows are long; a product of parts that is left out makes it ten times as large."""
    x, weight = normal(37, depth), normal(70, depth, seed=1)
    if positive:
        x, weight = np.abs(x), np.abs(weight)
    truth = exact(x, weight)
    ours, loop = (float(np.square(found - truth).mean()) ** 0.5 for found in (product(x, weight), added_up(x, weight)))
    assert ours < loop


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("depth", [1, 2, 15, 16, 17, 31, 32, 33, 63, 767, 768, 769])
def test_sizes_that_end_within_a_tile(rows: int, depth: int):
    for columns in (1, 15, 16, 17, 31, 33, 64, 70):
        x, weight, bias = normal(rows, depth), normal(columns, depth, seed=1), normal(columns)
        assert (np.abs(product(x, weight) - exact(x, weight)) <= 16 * EPS * sizes(x, weight)).all()
        assert np.array_equal(product(x, weight, bias), product(x, weight) + bias)


def test_dropped_parts_of_a_product_are_below_2_23():
    """Numbers whose second and third parts are as large as they come, and four roundings of what is added."""
    worst = np.array([1 + 2.0**-8 - 2.0**-23, 1 + 3 * 2.0**-8 - 2.0**-23, 1 + 2.0**-7 - 2.0**-23, 1 - 2.0**-9 + 2.0**-24], np.float32)
    numbers = np.concatenate([worst, -worst, 1 + np.abs(normal(4000)) / 4])
    x, weight = numbers[:, None], numbers[:400, None]
    assert (np.abs(product(x, weight) - exact(x, weight)) <= (2.0**-23 + 4 * EPS) * sizes(x, weight)).all()


@pytest.mark.parametrize("rows", ROWS)
def test_a_row_has_the_same_bits_among_any_others(rows: int):
    x, weight = normal(400, 1601), normal(70, 1601, seed=1)
    alone = product(x[:1], weight)
    whole = product(x, weight)
    assert np.array_equal(product(x[-rows:], weight), whole[-rows:])
    mates = np.concatenate([normal(rows - 1, 1601, seed=2) * 1e3, x[:1]])  # in the last place
    assert np.array_equal(product(mates, weight)[-1:], alone)
    mates[:-1:2], mates[1:-1:2] = np.nan, np.inf
    assert np.array_equal(product(mates, weight)[-1:], alone)


def test_a_column_has_the_same_bits_among_any_others():
    x, weight = normal(40, 1601), normal(70, 1601, seed=1)
    whole = product(x, weight)
    for first, last in ((0, 1), (3, 20), (5, 70), (69, 70)):
        assert np.array_equal(product(x, weight[first:last]), whole[:, first:last])


@pytest.mark.parametrize("exponent", [-100, -60, 40, 100])
def test_magnitudes_change_no_bits(exponent: int):
    """1e-30 to 1e30: numbers of 1/2 to 1 have no part below 2^-24, so that nothing is below 2^-126."""
    x, weight = (np.random.default_rng(seed).uniform(0.5, 1, (n, 100)).astype(np.float32) for seed, n in ((0, 33), (1, 40)))
    by = np.float32(2.0**exponent)
    assert np.array_equal(product(x * by, weight / by), product(x, weight))
    assert (np.abs(product(x * by, weight) - exact(x * by, weight)) <= 16 * EPS * sizes(x * by, weight)).all()


def test_magnitudes_side_by_side():
    x, weight = normal(33, 100), normal(40, 100, seed=1)
    scales = np.float32(10.0) ** np.linspace(-12, 12, 100).astype(np.float32)
    found = product(x * scales, weight / scales)
    assert (np.abs(found - exact(x * scales, weight / scales)) <= 16 * EPS * sizes(x * scales, weight / scales)).all()


def test_cancelling_products_leave_only_rounding():
    large, small, weight = normal(20, 64) * 1e4, normal(20, 64), normal(40, 64, seed=1)
    x = np.concatenate([large, small, -large], axis=1)
    weight = np.concatenate([weight, weight[:, ::-1], weight], axis=1)
    assert (np.abs(product(x, weight) - exact(x, weight)) <= 8 * EPS * sizes(x, weight)).all()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf, 3.4e38])
def test_numbers_that_cannot_be_split_stay_in_their_row(value: float):
    x, weight = normal(40, 100), normal(70, 100, seed=1)
    truth = product(x, weight)
    x[4, 7] = value
    found = product(x, weight)
    assert np.isnan(found[4]).all()
    assert np.array_equal(np.delete(found, 4, axis=0), np.delete(truth, 4, axis=0))


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_nan_of_any_kind_stays(bits: int):
    x = np.ones((3, 40), np.float32)
    x[1].view(np.uint32)[5] = bits
    found = np.isnan(product(x, normal(20, 40)))
    assert found[1].all()
    assert found.sum() == 20


def test_an_infinity_of_a_weight_stays_in_its_column():
    x, weight = normal(40, 100), normal(70, 100, seed=1)
    truth = product(x, weight)
    weight[66, 99] = np.inf
    found = product(x, weight)
    assert not np.isfinite(found[:, 66]).any()
    assert np.array_equal(np.delete(found, 66, axis=1), np.delete(truth, 66, axis=1))


def test_a_sum_that_is_too_large_is_not_finite():
    found = product(np.full((3, 40), 1e20, np.float32), np.full((5, 40), 1e20, np.float32))
    assert not np.isfinite(found).any()


def test_numbers_below_2_126_count_as_0():
    x, weight = normal(5, 64), normal(7, 64, seed=1)
    tiny = x.copy()
    x[:, ::3], tiny[:, ::3] = 0.0, 1e-38
    assert np.array_equal(product(tiny, weight * 1e5), product(x, weight * 1e5))
    assert np.array_equal(product(np.full((1, 4), 1e-38, np.float32), np.ones((1, 4), np.float32)), [[0.0]])
