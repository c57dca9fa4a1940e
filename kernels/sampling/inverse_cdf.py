"""Draws an id by a uniform number: the first id, in ascending order, whose cumulative weight exceeds u times the total.

``reference`` in plain mx ops is the specification; ``on_cpu`` does the same in NumPy, and the library in csrc/sampling.h. Sums are
made by blocks: one float32 running sum over a large vocabulary is off by 1e-4.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

BLOCK = 256

Floats = NDArray[np.float32]


def reference(e: mx.array, uniforms: mx.array) -> tuple[mx.array, mx.array]:
    """Computes the specification: weights e [B, V], uniforms [B] -> ids [B], totals [B]."""
    b, v = e.shape
    padded = mx.pad(e, [(0, 0), (0, -v % BLOCK)]).reshape(b, -1, BLOCK)
    ends = mx.cumsum(padded.sum(axis=-1), axis=-1)  # (B, blocks)
    total = ends[:, -1]
    threshold = (uniforms * total)[:, None]
    block = mx.minimum((ends <= threshold).sum(axis=-1, keepdims=True), _last_positive(ends[:, 1:] - ends[:, :-1]) + 1)
    before = mx.where(block > 0, mx.take_along_axis(ends, mx.maximum(block - 1, 0), axis=-1), 0.0)
    inside = mx.take_along_axis(padded, block[:, :, None], axis=1)[:, 0]  # (B, BLOCK)
    position = mx.minimum((mx.cumsum(inside, axis=-1) <= threshold - before).sum(axis=-1, keepdims=True), _last_positive(inside))
    # rounding may stop on a token of probability zero: take the next one with a chance
    ahead = (inside > 0) & (mx.arange(BLOCK) >= position)
    return (block * BLOCK)[:, 0] + mx.argmax(ahead, axis=-1), total


def running_sums(x: mx.array) -> mx.array:
    """Returns running sums of [B, V] over V, by blocks: no sum adds more than a few hundred float32 terms in turn."""
    b, v = x.shape
    inside = mx.cumsum(mx.pad(x, [(0, 0), (0, -v % BLOCK)]).reshape(b, -1, BLOCK), axis=-1)
    if inside.shape[1] == 1:  # mlx 0.32's CUDA kernel writes far behind the running sum of one element that lies in a larger array
        return inside[:, 0, :v]
    ends = mx.cumsum(inside[:, :, -1], axis=-1)
    before = mx.pad(ends[:, :-1], [(0, 0), (1, 0)])
    return (inside + before[:, :, None]).reshape(b, -1)[:, :v]


def _last_positive(x: mx.array) -> mx.array:
    """Returns the index [B, 1] of the last positive entry in each row of ``x`` [B, N]; -1 where there is none."""
    return mx.where(x > 0, mx.arange(x.shape[-1]), -1).max(axis=-1, keepdims=True) if x.shape[-1] else mx.full((x.shape[0], 1), -1)


def on_cpu(e: Floats, uniforms: Floats) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Computes ``reference`` in NumPy, with sums in float64: weights e [R, V], uniforms [R] -> ids [R], totals [R]."""
    b, v = e.shape
    ends = np.cumsum(np.add.reduceat(e, np.arange(0, v, BLOCK), axis=1, dtype=np.float64), axis=1)
    total = ends[:, -1]
    threshold = uniforms * total
    block = (ends <= threshold[:, None]).sum(axis=1)  # below total, so within the blocks
    block = np.minimum(block, ends.shape[1] - 1)
    before = np.where(block > 0, ends[np.arange(b), block - 1], 0.0)
    ids = block[:, None] * BLOCK + np.arange(BLOCK)
    inside = np.where(ids < v, np.take_along_axis(e, np.minimum(ids, v - 1), axis=1), 0)
    reached = (np.cumsum(inside, axis=1, dtype=np.float64) > (threshold - before)[:, None]) & (inside > 0)
    last = BLOCK - 1 - np.argmax((inside > 0)[:, ::-1], axis=1)
    position = np.where(reached.any(axis=1), np.argmax(reached, axis=1), last)
    return np.minimum(block * BLOCK + position, v - 1), total  # a row of NaN has no token that is reached
