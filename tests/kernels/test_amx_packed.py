"""Tests weights that tiles take packed, as bfloat16 holds them: their bits, and which weights these are."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import grouped_linear, linear, native
from numpy.typing import NDArray

from ..rounded_numbers import rounded

pytestmark = pytest.mark.skipif(not native.tiles(), reason="it serves processors that multiply in tiles")


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng([seed, *shape]).normal(0, 1, shape).astype(np.float32))


def packing_of(weight: mx.array) -> NDArray[np.float32]:
    found = linear.packed(weight)
    assert found is not None
    return found


@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32, 33, 192, 193, 400])
@pytest.mark.parametrize("depth", [1, 15, 31, 32, 33, 767, 768, 769, 1601])
def test_a_packed_weight_gives_the_same_bits(rows: int, depth: int):
    """Sizes within a tile and a block, and more than is multiplied at once."""
    for columns in (16, 32, 48, 272):
        x, weight, bias = normal(rows, depth), rounded(normal(columns, depth, seed=1)), normal(columns)
        packing = packing_of(weight)
        assert mx.array_equal(linear.on_cpu(x, weight, bias, packing), linear.on_cpu(x, weight, bias))
        packing[:] = 1e30  # a product that reads it is wrong
        assert np.abs(np.array(linear.on_cpu(x, weight, bias, packing))).max() > 1e20


@pytest.mark.parametrize("scale", [2.0**-126, 1e-30, 1e30])
def test_magnitudes_give_the_same_bits(scale: float):
    """Numbers below 2^-126 too, which count as 0."""
    x, weight = normal(40, 100) * min(1 / scale, 1e30), rounded(normal(64, 100, seed=1) * scale)
    found = linear.on_cpu(x, weight, None, packing_of(weight))
    assert np.abs(np.array(found)).min() > 1e-12
    assert mx.array_equal(found, linear.on_cpu(x, weight))


def test_a_transposed_weight_is_packed_as_its_copy():
    """Adapters and policies bring such views (GPT-2)."""
    weight = rounded(normal(100, 64)).T
    assert np.array_equal(packing_of(weight), packing_of(mx.contiguous(weight)))


def test_nan_and_infinities_stay_in_their_row():
    x, weight = np.array(normal(40, 100)), rounded(normal(64, 100, seed=1))
    packing = packing_of(weight)
    truth = np.array(linear.on_cpu(mx.array(x), weight, None, packing))
    x[4, 7], x[9, 9] = np.nan, np.inf
    found = np.array(linear.on_cpu(mx.array(x), weight, None, packing))
    assert np.isnan(found[[4, 9]]).all()
    np.testing.assert_array_equal(np.delete(found, [4, 9], axis=0), np.delete(truth, [4, 9], axis=0))


@pytest.mark.parametrize("place", [0, 1, 65_535, 65_536, -1])
@pytest.mark.parametrize("value", [1 + 2.0**-8, 2.0**-126 + 2.0**-149, np.nan, np.inf, -np.inf])
def test_one_number_that_does_not_fit_leaves_the_weight_unpacked(place: int, value: float):
    """The last bit that bfloat16 has is 2^-7 of a number. Infinities are left to products that split them."""
    numbers = np.array(rounded(normal(512, 272)))
    assert packing_of(mx.array(numbers)).nbytes == linear.bytes_packed(mx.array(numbers)) == 2 * 512 * 288
    numbers.reshape(-1)[place] = value
    weight = mx.array(numbers)
    assert linear.packed(weight) is None


def test_experts_are_packed_together_or_not_at_all():
    weight, x, indices = rounded(normal(3, 48, 70)), normal(9, 1, 1, 70), mx.array(np.arange(18).reshape(9, 2) % 3)
    packing = packing_of(weight)
    assert mx.array_equal(grouped_linear.on_cpu(x, weight, indices, None, packing), grouped_linear.on_cpu(x, weight, indices))
    packing[1] = 0
    assert not np.array(grouped_linear.on_cpu(x, weight, indices, None, packing))[np.array(indices) == 1].any()
    weight[1, 2, 3] = 0.1
    assert linear.packed(weight) is None


def test_what_is_packed_begins_with_a_cache_line():
    """Else each row of a tile lies in two of them."""
    for columns in (16, 48, 1040):
        assert packing_of(rounded(normal(columns, 40))).ctypes.data % 64 == 0


def test_a_weight_that_does_not_fit_is_looked_at_once(monkeypatch: pytest.MonkeyPatch):
    weight, asked = normal(32, 40), list[Any]()
    held = linear.packed_once(None, weight, None)
    monkeypatch.setattr(linear, "packed", lambda *pair: asked.append(pair))
    assert linear.packed_once(held, weight, None) is held
    assert held.packed is None
    assert not asked
