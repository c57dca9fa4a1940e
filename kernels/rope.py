"""Rotary position embeddings (Su et al. 2021): pairs of a head's numbers are rotated by angles that grow with the position.

mx computes each angle's cosine and sine again in every layer. On the CPU, the first layer's are kept for the other layers of a step.
"""

import math
from functools import cache

import mlx.core as mx
import numpy as np

from . import native


@cache
def frequencies(dims: int, base: float) -> mx.array:
    """Returns base^(-2i / dims) for i < dims / 2: [dims / 2], radians per position.

    Computed as mx does: one ulp of difference grows large at a far position.
    """
    half = dims // 2
    values = mx.exp(-mx.arange(half, dtype=mx.float32) * (math.log(base) / half))
    mx.eval(values)
    return values


def reference(
    x: mx.array, frequencies: mx.array, offset: int | mx.array, scale: float = 1.0, neighbours: bool = False, magnitude: float = 1.0
) -> mx.array:
    """Rotates x [B, H, T, D], from position ``offset`` on (an integer, or [B]) -> [B, H, T, D].

    The first 2 · len(frequencies) of D are rotated, the others stay. Pairs are (i, i + half), or with ``neighbours`` (2i, 2i + 1).
    ``scale`` multiplies positions; ``magnitude`` the numbers that are rotated (YaRN, Peng et al. 2023; LongRoPE, Ding et al. 2024).
    """
    starts = mx.array(offset).reshape(-1, 1, 1, 1)
    angles = (starts + mx.arange(x.shape[2]).reshape(1, 1, -1, 1)) * scale * frequencies
    return turned(x, magnitude * mx.cos(angles), magnitude * mx.sin(angles), neighbours)


def turned(x: mx.array, cosines: mx.array, sines: mx.array, neighbours: bool = False) -> mx.array:
    """Rotates x [B, H, T, D] by given angles, whose cosines and sines are [1 or B, 1, T, R / 2], as ``reference`` does."""
    half = cosines.shape[-1]
    a, b = (x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]) if neighbours else (x[..., :half], x[..., half : 2 * half])
    pair = [a * cosines - b * sines, a * sines + b * cosines]
    whole = mx.stack(pair, axis=-1).reshape(*x.shape[:-1], -1) if neighbours else mx.concatenate(pair, axis=-1)
    return mx.concatenate([whole, x[..., 2 * half :]], axis=-1)


def suits(x: mx.array, dims: int, offset: int | mx.array) -> bool:
    """Returns True when the library serves: float32 on the CPU, [B, H, T, D], even ``dims`` of D, one integer offset or one per row."""
    if x.ndim != 4 or not 0 < dims <= x.shape[-1] or dims % 2:
        return False
    if isinstance(offset, mx.array):
        integer = mx.issubdtype(offset.dtype, mx.integer)
        return integer and offset.ndim <= 1 and offset.size in (1, x.shape[0]) and native.suits(x)
    return type(offset) is int and native.suits(x)


def on_cpu(
    x: mx.array, frequencies: mx.array, offset: int | mx.array, scale: float = 1.0, neighbours: bool = False, magnitude: float = 1.0
) -> mx.array:
    """Computes ``reference`` now, by the library. In memory the result is [B, T, H, D], as projections leave it."""
    native.evaluate_arrays(x, *([offset] if isinstance(offset, mx.array) else []))
    strides = native.layout(x).strides
    if strides is None or strides[-1] != x.itemsize:
        x = native.dense(x)
    b, h, t, d = x.shape
    starts = np.array(offset, np.int64).reshape(-1)
    out = native.empty((b, t, h, d))
    native.library().rotate(x, native.dense(frequencies), starts, out, scale, magnitude, int(neighbours))
    return out.transpose(0, 2, 1, 3)
