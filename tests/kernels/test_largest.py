"""Tests both ways to find the largest, the specification and NumPy's, against sorting."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import largest
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Finder = Callable[[Floats, int], NDArray[np.int32]]


def by_specification(x: Floats, k: int) -> NDArray[np.int32]:
    return np.array(largest.reference(mx.array(x), k))


WAYS = [pytest.param(by_specification, id="reference"), pytest.param(largest.on_cpu, id="on_cpu")]


@st.composite
def rows(draw: st.DrawFn) -> tuple[Floats, int]:
    """Values [N, V] with ties, zeros of both signs and -inf, V around the blocks' sizes; k up to V."""
    v = draw(st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 200, 1030, 5000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(0, 2, (draw(st.integers(1, 3)), v))
    if draw(st.booleans()):
        x = np.round(x)  # -0.0 and 0.0 are equals
    x[rng.random(x.shape) < draw(st.sampled_from([0.0, 0.5, 0.99, 1.0]))] = -np.inf
    return x.astype(np.float32), min(v, draw(st.sampled_from([1, 2, 5, 20, 100, 500, 6000])))


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(rows())
def test_the_largest_are_those_of_sorting_and_ties_go_to_the_lower_id(way: Finder, case: tuple[Floats, int]):
    x, k = case
    found = way(x, k)
    np.testing.assert_array_equal(found, np.argsort(-x, axis=1, kind="stable")[:, :k])
    assert found.dtype == np.int32


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nan", [np.nan, -np.nan])
@pytest.mark.parametrize("v", [5, 70, 3000])
def test_ids_of_nan_lie_in_the_vocabulary_and_other_rows_stay(way: Finder, nan: float, v: int):
    x = np.random.default_rng(v).normal(0, 1, (3, v)).astype(np.float32)
    x[1] = nan
    found = way(x, 5)
    assert ((found >= 0) & (found < v)).all()
    np.testing.assert_array_equal(found[[0, 2]], way(x[[0, 2]], 5))
