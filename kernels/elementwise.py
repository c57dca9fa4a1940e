"""The cheap functions between a layer's matrix products: RMS norm, and the activations swiglu, silu and gelu's tanh form.

Each has its specification in mx's ops and a CPU version by the library. Knows no models.
"""

import mlx.core as mx
import mlx.nn as nn

from . import native

GELU_SLOPE, GELU_CUBE = 1.5957691216057308, 0.044715  # 2 · sqrt(2 / pi), and Hendrycks and Gimpel's 2016 cubic term


def reference_rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Returns x / sqrt(mean(x²) + eps) · weight: x [..., D], weight [D] -> [..., D] (Zhang and Sennrich 2019)."""
    return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def suits_rms_norm(x: mx.array, weight: mx.array) -> bool:
    """Returns True when the library serves a norm: float32 on the CPU, and a weight of the last axis."""
    return x.ndim > 0 and weight.shape == (x.shape[-1],) and native.suits(x, weight)


def rms_norm_on_cpu(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Computes ``reference_rms_norm`` now, by the library, in one pass."""
    x, weight = native.dense(x), native.dense(weight)
    out = native.empty(x.shape)
    native.library().rms_norm(x, weight, out, eps)
    return out


def reference_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Returns silu(gate) · x, elementwise over [..., D]."""
    return nn.silu(gate) * x


def reference_silu(x: mx.array) -> mx.array:
    """Returns x · sigmoid(x)."""
    return nn.silu(x)


def reference_gelu_approx(x: mx.array) -> mx.array:
    """Returns x · (1 + tanh(sqrt(2 / pi) · (x + 0.044715 x³))) / 2."""
    return nn.gelu_approx(x)


def swiglu_on_cpu(gate: mx.array, x: mx.array) -> mx.array:
    """Computes ``reference_swiglu`` now, by the library, as x / (1 + exp(-z))."""
    gate, x, out = native.dense(gate), native.dense(x), native.empty(x.shape)
    native.library().swiglu(gate, x, out)
    return out


def silu_on_cpu(x: mx.array) -> mx.array:
    """Computes ``reference_silu`` now, by the library, as x / (1 + exp(-z))."""
    x, out = native.dense(x), native.empty(x.shape)
    native.library().silu(x, out)
    return out


def gelu_approx_on_cpu(x: mx.array) -> mx.array:
    """Computes ``reference_gelu_approx`` now, by the library, as (1 + tanh(z)) / 2 = sigmoid(2z)."""
    x, out = native.dense(x), native.empty(x.shape)
    native.library().gelu_approx(x, out, GELU_SLOPE, GELU_CUBE)
    return out
