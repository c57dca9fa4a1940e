"""Pooling against plain loops over each row's own tokens, in float64."""

import math
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.pooling.modes import pool
from mlx_bulk.runner.pooling.spec import PoolingMode
from numpy.typing import NDArray

LENGTHS, STARTS = [5, 1, 12, 7], [0, 0, 3, 6]
NEAR = 1e-6  # float32 sums of a dozen numbers of size 1
MODES = pytest.mark.parametrize("mode", get_args(PoolingMode))


def specified(row: NDArray[np.float64], start: int, mode: str) -> Any:
    """The vector of a row's states [T, H], of which the first ``start`` do not count."""
    kept = row[start:]
    if mode == "cls":
        return kept[0]
    if mode == "lasttoken":
        return kept[-1]
    if mode == "max":
        return kept.max(axis=0)
    if mode == "weightedmean":
        weights = [at + 1 for at in range(start, len(row))]
        return sum(w * state for w, state in zip(weights, kept, strict=True)) / sum(weights)
    return kept.sum(axis=0) / (len(kept) if mode == "mean" else math.sqrt(len(kept)))


def states(pad: float) -> mx.array:
    made = np.random.default_rng(0).standard_normal((4, 14, 6)).astype(np.float32)
    for row, length in zip(made, LENGTHS, strict=True):
        row[length:] = pad
    return mx.array(made)


@MODES
@pytest.mark.parametrize("pad", [0.0, 9.0, math.nan, math.inf])
def test_a_mode_is_as_specified_whatever_pads_hold(mode: PoolingMode, pad: float) -> None:
    x = states(pad)
    found = np.array(pool(x, mx.array(LENGTHS), mx.array(STARTS), mode))
    rows = np.array(x, np.float64)
    for vector, row, length, start in zip(found, rows, LENGTHS, STARTS, strict=True):
        np.testing.assert_allclose(vector, specified(row[:length], start, mode), rtol=0, atol=NEAR)


@MODES
def test_a_row_of_which_nothing_counts_is_nan(mode: PoolingMode) -> None:
    found = np.array(pool(states(0.0), mx.array(LENGTHS), mx.array([5, 9, 0, 0]), mode))
    assert np.isnan(found[:2]).all()
    assert np.isfinite(found[2:]).all()
