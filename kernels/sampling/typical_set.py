"""Typical-p: keeps the tokens whose surprise lies nearest to the entropy, until their probability reaches ``typical_p``.

Meister et al. 2022, "Locally Typical Sampling", section 5: the smallest such set by |-log p - H|. With z = log p + c the entropy is
H = c - mean(z), so the distance is |z - mean(z)|, and no logarithm is needed. Ties go to the lower id.

    z             0     -1     -2     -3        mean -0.49
    distance      0.49   0.51   1.51   2.51     0.6 is reached by the first alone, 0.9 by the first three

``reference`` in plain mx ops is the specification, and sorts no row (cut.py); ``on_cpu`` does the same in NumPy, and the
library in csrc/sampling.h.
"""

from functools import partial

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import logprobs
from .cut import in_blocks, last_id, reach, with_sums

Floats = NDArray[np.float32]


def reference(z: mx.array, typical_p: Floats) -> mx.array:
    """Computes the specification: marks the tokens of z [B, V] that stay, bool [B, V]. z: log-weights; typical_p: [B], 1 is off."""
    share = mx.array(typical_p)[:, None]
    e, surprise = _moments(z)
    mean = logprobs.sum_by_blocks(surprise) / logprobs.sum_by_blocks(e)
    distance = _distance(z, mean)
    blocks = in_blocks(distance, mx.inf)
    order = mx.argsort(blocks, axis=-1)
    tokens = with_sums(*(mx.take_along_axis(x, order, axis=-1) for x in (blocks, in_blocks(e, 0.0))))
    needed = share * tokens.total
    cut, below = reach(tokens, needed)
    last = last_id(_level(distance, cut, e), needed - below)  # on both sides of the mean, so of unlike weights
    return _kept(distance, cut, last, mx.arange(z.shape[1]), share)


@partial(mx.compile, shapeless=True)
def _moments(z: mx.array) -> tuple[mx.array, mx.array]:
    e = mx.exp(z)
    return e, mx.where(z > -mx.inf, e * z, 0.0)


@partial(mx.compile, shapeless=True)
def _distance(z: mx.array, mean: mx.array) -> mx.array:
    return mx.where(z > -mx.inf, mx.abs(z - mean), mx.inf)


@partial(mx.compile, shapeless=True)
def _level(distance: mx.array, cut: mx.array, e: mx.array) -> mx.array:
    return mx.where(distance == cut, e, 0.0)


@partial(mx.compile, shapeless=True)
def _kept(distance: mx.array, cut: mx.array, last: mx.array, ids: mx.array, share: mx.array) -> mx.array:
    return (distance < cut) | ((distance == cut) & (ids <= last)) | (share == 1)


def on_cpu(z: Floats, typical_p: Floats) -> None:
    """Computes ``reference`` in NumPy: sets the tokens of z [R, V] that go to -inf, in place."""
    for row, share in zip(z, typical_p.astype(np.float64), strict=True):
        ids = np.flatnonzero(row > -np.inf)
        if share == 1 or not len(ids):
            continue
        own = row[ids]
        e = np.exp(own)
        mean = np.float32((e * own).sum(dtype=np.float64) / e.sum(dtype=np.float64))
        order = np.argsort(np.abs(own - mean), kind="stable")
        mass = np.cumsum(e[order], dtype=np.float64)
        count = int((mass < share * mass[-1]).sum()) + 1
        row[ids[order[count:]]] = -np.inf
