"""Tests running sums by blocks against NumPy, and that mlx's scan gets nothing that its CUDA kernel cannot take."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.sampling.inverse_cdf import BLOCK, running_sums


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("width", [1, 17, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_running_sums_are_those_of_numpy(rows: int, width: int, monkeypatch: pytest.MonkeyPatch):
    """One element of a larger array has a long stride: mlx 0.32's kernel takes that for the columns of a matrix, and writes them all."""
    given: list[tuple[int, ...]] = []
    scan = mx.cumsum

    def watched(x: mx.array, axis: int) -> Any:
        given.append(x.shape)
        return scan(x, axis=axis)

    monkeypatch.setattr(mx, "cumsum", watched)
    x = np.random.default_rng(width).integers(0, 9, (rows, width)).astype(np.float32)  # whole numbers: every order adds up to the same
    np.testing.assert_array_equal(np.array(running_sums(mx.array(x))), np.cumsum(x, axis=1))
    assert all(shape[-1] > 1 for shape in given)
