"""Tests the cut without a sort against sorting. Weights are small integers, so that float32 sums are exact and so is the cut."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels.sampling import cut
from mlx_bulk.kernels.sampling.cut import SortedBlocks
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@st.composite
def tokens(draw: st.DrawFn) -> tuple[Floats, Floats, Floats]:
    """Keys [R, V] with ties and infinite ones, integer weights [R, V], and sums [R, 1] that are asked for, up to beyond the total."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    r, v = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 15, 16, 17, 100, 333, 1000, 3000]))
    keys = rng.exponential(draw(st.sampled_from([1e-3, 1.0, 1e4])), (r, v))
    levels = draw(st.sampled_from([0, 1, 3, 40]))
    if levels:
        keys = np.floor(keys / keys.max() * levels)
    keys[rng.random((r, v)) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = np.inf
    weights = rng.integers(0, draw(st.sampled_from([2, 8])), (r, v)) * (rng.random((r, v)) < draw(st.sampled_from([0.1, 1.0])))
    share = np.array([draw(st.sampled_from([0.0, 0.01, 0.5, 0.95, 1.0, 1.1])) for _ in range(r)])[:, None]
    needed = np.maximum(np.floor(share * weights.sum(axis=1, keepdims=True)) + draw(st.sampled_from([-0.5, 0.0])), 0.5)
    return keys.astype(np.float32), weights.astype(np.float32), needed.astype(np.float32)


def sorted_blocks(keys: Floats, weights: Floats) -> SortedBlocks:
    blocks = cut.in_blocks(mx.array(keys), mx.inf)
    order = mx.argsort(blocks, axis=-1)
    return cut.with_sums(*(mx.take_along_axis(x, order, axis=-1) for x in (blocks, cut.in_blocks(mx.array(weights), 0.0))))


@pytest.mark.parametrize(("block", "group", "probes"), [(2048, 16, 32), (64, 16, 4), (16, 4, 3), (8, 8, 1), (4, 1, 1000)])
@settings(max_examples=60, deadline=None)
@given(tokens())
def test_the_cut_is_that_of_sorting(block: int, group: int, probes: int, case: tuple[Floats, Floats, Floats]):
    keys, weights, needed = case
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BLOCK", block), ("GROUP", group), ("PROBES", probes)):
            patch.setattr(cut, name, value)
        found = sorted_blocks(keys, weights)
        assert np.array(found.total).tolist() == weights.sum(axis=1, keepdims=True).tolist()
        at, below = cut.reach(found, mx.array(needed))
        last = np.array(cut.last_id(mx.where(mx.array(keys) == at, mx.array(weights), 0.0), mx.array(needed) - below))
        assert np.array(below).tolist() == np.array(found.below(at)).tolist()
    found_of_rows = (np.array(at)[:, 0], np.array(below)[:, 0], last[:, 0])
    for row, own, want, key, sum_below, id_ in zip(keys, weights, needed[:, 0], *found_of_rows, strict=True):
        order = np.argsort(row, kind="stable")
        mass = np.cumsum(own[order], dtype=np.float64)
        if mass[-1] < want:
            assert key == np.inf or key == row.max()
            assert id_ == len(row)
        else:
            token = order[int((mass < want).sum())]
            assert (key, id_) == (row[token], token)
        assert sum_below == own[row < key].sum()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 255, 256, 257, 1000]), st.sampled_from([0.0, 0.01, 0.5]))
def test_the_last_id_is_the_first_that_reaches_the_sum(seed: int, v: int, density: float):
    rng = np.random.default_rng(seed)
    marks = rng.random((3, v)) < density
    needed = rng.integers(1, 1 + max(1, int(marks.sum(axis=1).max())), (3, 1))
    found = np.array(cut.last_id(mx.array(marks.astype(np.int32)), mx.array(needed.astype(np.float32))))[:, 0]
    for row, want, id_ in zip(marks, needed[:, 0], found, strict=True):
        at = np.flatnonzero(row)
        assert id_ == (at[want - 1] if len(at) >= want else v)
