"""Tests the CPU's RoPE against its specification and mx's own, also at far positions."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native, rope

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

ATOL = 2e-6  # of values around 1: roundings of cosines and sines, and of two products


def both(
    x: mx.array, dims: int, offset: Any, base: float = 10000.0, scale: float = 1.0, neighbours: bool = False, magnitude: float = 1.0
) -> list[Any]:
    frequencies = rope.frequencies(dims, base)
    larger = x.at[..., :dims].multiply(magnitude)
    theirs = mx.fast.rope(larger, dims, traditional=neighbours, base=base, scale=scale, offset=offset)
    return [
        np.array(y)
        for y in (
            rope.on_cpu(x, frequencies, offset, scale, neighbours, magnitude),
            rope.reference(x, frequencies, offset, scale, neighbours, magnitude),
            theirs,
        )
    ]


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("dims", [16, 10])
@pytest.mark.parametrize("offset", [0, 5, 30_000])
def test_agrees_with_the_specification_and_with_mx(offset: int, dims: int, neighbours: bool):
    x = mx.random.normal((2, 7, 3, 16)).transpose(0, 2, 1, 3)
    found, reference, theirs = both(x, dims, offset, neighbours=neighbours)
    np.testing.assert_allclose(found, reference, rtol=0, atol=ATOL)
    np.testing.assert_allclose(found, theirs, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("base", "scale"), [(1e6, 1.0), (500000.0, 0.125)])
def test_rows_at_positions_of_their_own(base: float, scale: float):
    x, offset = mx.random.normal((4, 2, 3, 64)), mx.array([3, 0, 100_000, -2])
    found, reference, theirs = both(x, 64, offset, base, scale)
    np.testing.assert_allclose(found, reference, rtol=0, atol=ATOL)
    np.testing.assert_allclose(found, theirs, rtol=0, atol=ATOL)


def test_earlier_rotations_do_not_matter():
    """Angles are kept from call to call: other positions, lengths, frequencies and scales take others."""
    x = mx.random.normal((2, 2, 3, 16))
    first: dict[Any, Any] = {}
    calls: list[Any] = [(16, 0, 1e4), (16, 1, 1e4), (8, 0, 1e4), (16, 0, 1e3), (16, 0, 1e4, 2.0), (8, 0, 1e4, 1.0, False, 1.2)]
    for _ in range(2):
        for how in calls:
            for part in (x, x[:, :, :1], x[:1]):
                found, _, theirs = both(part, *how)
                np.testing.assert_array_equal(found, first.setdefault((how, part.shape), found))
                np.testing.assert_allclose(found, theirs, rtol=0, atol=ATOL)


def test_one_position_for_all_rows_is_that_of_each():
    x = mx.random.normal((3, 2, 1, 16))
    np.testing.assert_array_equal(both(x, 16, 9)[0], both(x, 16, mx.array([9, 9, 9]))[0])


@pytest.mark.parametrize(
    ("dims", "offset"),
    [(64, 0), (7, 0), (16, 1.5), (16, True), (16, mx.array([1.0])), (16, mx.array([1, 2, 3])), (16, mx.array([[1], [2]]))],
)
def test_shapes_that_mlx_refuses_or_does_better_do_not_suit(dims: int, offset: Any):
    assert not rope.suits(mx.zeros((2, 2, 3, 16)), dims, offset)


@pytest.mark.parametrize("offset", [0, mx.array(3), mx.array([3]), mx.array([3, 4])])
def test_an_integer_for_all_or_one_a_row_suits(offset: Any):
    assert rope.suits(mx.zeros((2, 2, 3, 16)), 16, offset)
    assert not rope.suits(mx.zeros((2, 3, 16)), 16, offset)
