"""Root mean square norm over the last axis (Zhang and Sennrich 2019), in one pass and all cores on the CPU."""

import mlx.core as mx

from . import native


def reference(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x / sqrt(mean(x²) + eps) · weight: x [..., D], weight [D] -> [..., D]."""
    return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def suits(x: mx.array, weight: mx.array) -> bool:
    """The chooser: float32 on the CPU, and a weight of the last axis."""
    return x.ndim > 0 and weight.shape == (x.shape[-1],) and native.suits(x, weight)


def on_cpu(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """``reference`` by the library, computed now."""
    x, weight = native.dense(x), native.dense(weight)
    out = native.empty(x.shape)
    native.library().rms_norm(x, weight, out, eps)
    return out
