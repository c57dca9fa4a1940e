"""Rotary position embeddings (Su et al. 2021): pairs of a head's numbers are turned by angles that grow with the position.

mx makes each angle's cosine and sine anew in every layer; on the CPU those of a step are kept for the layers behind the first.
"""

import math
from functools import cache

import mlx.core as mx
import numpy as np

from . import native


@cache
def frequencies(dims: int, base: float) -> mx.array:
    """base^(-2i / dims) for i < dims / 2: [dims / 2], radians a position. As mx computes them: an ulp here is much at a far position."""
    half = dims // 2
    found = mx.exp(-mx.arange(half, dtype=mx.float32) * (math.log(base) / half))
    mx.eval(found)
    return found


def reference(x: mx.array, frequencies: mx.array, offset: int | mx.array, scale: float = 1.0, neighbours: bool = False) -> mx.array:
    """x [B, H, T, D], the first of each row's T at position ``offset`` (one, or [B]) -> [B, H, T, D].

    The first 2 · len(frequencies) of D are turned, the others stay. Pairs are (i, i + half), or with ``neighbours`` (2i, 2i + 1).
    ``scale`` multiplies positions.
    """
    half = len(frequencies)
    starts = mx.array(offset).reshape(-1, 1, 1, 1)
    angles = (starts + mx.arange(x.shape[2]).reshape(1, 1, -1, 1)) * scale * frequencies
    c, s = mx.cos(angles), mx.sin(angles)
    a, b = (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]) if neighbours else (x[..., :half], x[..., half : 2 * half])
    turned = [a * c - b * s, a * s + b * c]
    whole = mx.stack(turned, axis=-1).reshape(*x.shape[:-1], -1) if neighbours else mx.concatenate(turned, axis=-1)
    return mx.concatenate([whole, x[..., 2 * half :]], axis=-1)


def suits(x: mx.array, dims: int, offset: int | mx.array) -> bool:
    """The chooser: float32 on the CPU, [B, H, T, D], an even number of ``dims`` of D, an integer for all rows or one a row."""
    if x.ndim != 4 or not 0 < dims <= x.shape[-1] or dims % 2:
        return False
    if isinstance(offset, mx.array):
        integer = mx.issubdtype(offset.dtype, mx.integer)
        return integer and offset.ndim <= 1 and offset.size in (1, x.shape[0]) and native.suits(x)
    return type(offset) is int and native.suits(x)


def on_cpu(x: mx.array, frequencies: mx.array, offset: int | mx.array, scale: float = 1.0, neighbours: bool = False) -> mx.array:
    """``reference`` by the library, computed now; in memory it is [B, T, H, D], as projections leave it."""
    native.evaluate_arrays(x, *([offset] if isinstance(offset, mx.array) else []))
    strides = native.layout(x).strides
    if strides is None or strides[-1] != x.itemsize:
        x = native.dense(x)
    b, h, t, d = x.shape
    starts = np.array(offset, np.int64).reshape(-1)
    out = native.empty((b, t, h, d))
    native.library().rotate(x, native.dense(frequencies), starts, out, scale, int(neighbours))
    return out.transpose(0, 2, 1, 3)
