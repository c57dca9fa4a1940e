"""Typical-p: keeps the tokens whose surprise lies nearest to the entropy, until their probability reaches ``typical_p``.

Meister et al. 2022, "Locally Typical Sampling", section 5: the smallest such set by |-log p - H|. With z = log p + c the entropy is
H = c - mean(z), so the distance is |z - mean(z)|, and no logarithm is needed. Ties go to the lower id.

    z             0     -1     -2     -3        mean -0.49
    distance      0.49   0.51   1.51   2.51     0.6 is reached by the first alone, 0.9 by the first three

``reference`` in plain mx ops is the specification; ``on_cpu`` does the same in NumPy, and the library in csrc/sampling.h.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import logprobs
from .inverse_cdf import running_sums

Floats = NDArray[np.float32]


def reference(z: mx.array, typical_p: Floats) -> mx.array:
    """Computes the specification: marks the tokens of z [B, V] that stay, bool [B, V]. z: log-weights; typical_p: [B], 1 is off."""
    v = z.shape[-1]
    share = mx.array(typical_p)[:, None]
    there = z > -mx.inf
    e = mx.exp(z)
    mean = logprobs.sum_by_blocks(mx.where(there, e * z, 0.0)) / logprobs.sum_by_blocks(e)
    distance = mx.where(there, mx.abs(z - mean), mx.inf)
    order = mx.argsort(distance, axis=-1)
    mass = running_sums(mx.take_along_axis(e, order, axis=-1))
    count = mx.minimum((mass < share * mass[:, -1:]).sum(axis=-1, keepdims=True) + 1, v)
    cut = mx.take_along_axis(distance, mx.take_along_axis(order, count - 1, axis=-1), axis=-1)
    level = distance == cut
    quota = count - (distance < cut).sum(axis=-1, keepdims=True)
    return (distance < cut) | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= quota)) | (share == 1)


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
