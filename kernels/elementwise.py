"""The cheap functions between a layer's matrix products: RMS and layer norm, and activations: swiglu, clamped or not, silu, gelu, geglu.

Each has its specification in mx's ops and a CPU version by the library. Knows no models.
"""

import mlx.core as mx
import mlx.nn as nn

from . import native

# Those of blocks' feed-forwards, by name; their places are row_ops.h's numbers for them.
ACTIVATIONS = {"gelu": nn.gelu, "gelu_tanh": nn.gelu_approx, "silu": nn.silu, "relu": nn.relu, "quick_gelu": nn.gelu_fast_approx}


def reference_rms_norm(x: mx.array, weight: mx.array, eps: float, more: float = 0.0) -> mx.array:
    """Returns x / sqrt(mean(x²) + eps) · (weight + more): x [..., D], weight [D] -> [..., D] (Zhang and Sennrich 2019).

    ``more`` is 1 where a model holds its weights' distance from 1 (Gemma).
    """
    return x * mx.rsqrt((x * x).mean(axis=-1, keepdims=True) + eps) * (weight + more)


def suits_rms_norm(x: mx.array, weight: mx.array) -> bool:
    """Returns True when the library serves a norm: float32 on the CPU, and a weight of the last axis."""
    return x.ndim > 0 and weight.shape == (x.shape[-1],) and native.suits(x, weight)


def rms_norm_on_cpu(x: mx.array, weight: mx.array, eps: float, more: float = 0.0) -> mx.array:
    """Computes ``reference_rms_norm`` now, by the library, in one pass."""
    x, weight = native.dense(x), native.dense(weight)
    out = native.empty(x.shape)
    native.library().rms_norm(x, weight, out, eps, more)
    return out


def reference_layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """Returns (x - mean) / sqrt(variance + eps) · weight + bias over [..., D]; weight and bias are [D] or None (Ba et al. 2016)."""
    apart = x - x.mean(axis=-1, keepdims=True)
    normed = apart * mx.rsqrt((apart * apart).mean(axis=-1, keepdims=True) + eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def suits_layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None) -> bool:
    """Returns True when the library serves a norm: float32 on the CPU, and weight and bias of the last axis."""
    given = [array for array in (weight, bias) if array is not None]
    return x.ndim > 0 and all(array.shape == (x.shape[-1],) for array in given) and native.suits(x, *given)


def layer_norm_on_cpu(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """Computes ``reference_layer_norm`` now, by the library: the mean first, then the distances from it, as exact as two passes are."""
    x, out = native.dense(x), native.empty(x.shape)
    weight, bias = (None if array is None else native.dense(array) for array in (weight, bias))
    native.library().layer_norm(x, native.maybe(weight), native.maybe(bias), out, eps)
    return out


def reference_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Returns silu(gate) · x, elementwise over [..., D]."""
    return nn.silu(gate) * x


def reference_clamped_swiglu(gate: mx.array, x: mx.array, slope: float, limit: float) -> mx.array:
    """Returns g · sigmoid(slope · g) · (clip(x, -limit, limit) + 1) with g = min(gate, limit), elementwise over [..., D] (gpt-oss)."""
    gate = mx.minimum(gate, limit)
    return gate * mx.sigmoid(slope * gate) * (mx.clip(x, -limit, limit) + 1)


def reference_silu(x: mx.array) -> mx.array:
    """Returns x · sigmoid(x)."""
    return nn.silu(x)


def reference_gelu_approx(x: mx.array) -> mx.array:
    """Returns x · (1 + tanh(sqrt(2 / pi) · (x + 0.044715 x³))) / 2."""
    return nn.gelu_approx(x)


def reference_gelu(x: mx.array) -> mx.array:
    """Returns x · (1 + erf(x / sqrt(2))) / 2: x times the normal distribution's share below x (Hendrycks and Gimpel 2016)."""
    return nn.gelu(x)


def reference_geglu(gate: mx.array, x: mx.array) -> mx.array:
    """Returns gelu(gate) · x, elementwise over [..., D] (Shazeer 2020)."""
    return nn.gelu(gate) * x


def swiglu_on_cpu(gate: mx.array, x: mx.array) -> mx.array:
    """Computes ``reference_swiglu`` now, by the library, as x / (1 + exp(-z))."""
    gate, x, out = native.dense(gate), native.dense(x), native.empty(x.shape)
    native.library().swiglu(gate, x, out)
    return out


def clamped_swiglu_on_cpu(gate: mx.array, x: mx.array, slope: float, limit: float) -> mx.array:
    """Computes ``reference_clamped_swiglu`` now, by the library."""
    gate, x, out = native.dense(gate), native.dense(x), native.empty(x.shape)
    native.library().clamped_swiglu(gate, x, out, slope, limit)
    return out


def silu_on_cpu(x: mx.array) -> mx.array:
    """Computes ``reference_silu`` now, by the library, as x / (1 + exp(-z))."""
    x, out = native.dense(x), native.empty(x.shape)
    native.library().silu(x, out)
    return out


def gelu_approx_on_cpu(x: mx.array) -> mx.array:
    """Computes ``reference_gelu_approx`` now, by the library, as (1 + tanh(z)) / 2 = sigmoid(2z)."""
    x, out = native.dense(x), native.empty(x.shape)
    native.library().gelu_approx(x, out)
    return out


def gelu_on_cpu(x: mx.array) -> mx.array:
    """Computes ``reference_gelu`` now, by the library, to 2.5e-7 of the value where x >= 0 and to 5e-7 · (1 + |x|) of it where x >= -6.

    Rounding such an x to float32 moves the value by as much. Below -6 the value is 0 to 1e-13.
    """
    x, out = native.dense(x), native.empty(x.shape)
    native.library().gelu(x, out)
    return out


def geglu_on_cpu(gate: mx.array, x: mx.array) -> mx.array:
    """Computes ``reference_geglu`` now, by the library."""
    gate, x, out = native.dense(gate), native.dense(x), native.empty(x.shape)
    native.library().geglu(gate, x, out)
    return out
