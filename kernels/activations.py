"""Activations of feed-forward layers, [..., D] elementwise: swiglu, silu, gelu's tanh form.

Each has its specification in mx's ops, and the CPU's version as x / (1 + exp(-z)) by the library. Nothing here knows of models.
"""

import mlx.core as mx
import mlx.nn as nn

from . import native

GELU_SLOPE, GELU_CUBE = 1.5957691216057308, 0.044715  # 2 · sqrt(2 / pi), and Hendrycks and Gimpel's 2016 cubic term


def reference_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) · x."""
    return nn.silu(gate) * x


def reference_silu(x: mx.array) -> mx.array:
    """x · sigmoid(x)."""
    return nn.silu(x)


def reference_gelu_approx(x: mx.array) -> mx.array:
    """x · (1 + tanh(sqrt(2 / pi) · (x + 0.044715 x³))) / 2."""
    return nn.gelu_approx(x)


def swiglu_on_cpu(gate: mx.array, x: mx.array) -> mx.array:
    """``reference_swiglu`` by the library, computed now."""
    gate, x, out = native.dense(gate), native.dense(x), native.empty(x.shape)
    native.library().swiglu(gate, x, out)
    return out


def silu_on_cpu(x: mx.array) -> mx.array:
    """``reference_silu`` by the library, computed now."""
    x, out = native.dense(x), native.empty(x.shape)
    native.library().silu(x, out)
    return out


def gelu_approx_on_cpu(x: mx.array) -> mx.array:
    """``reference_gelu_approx`` by the library, computed now: (1 + tanh(z)) / 2 = sigmoid(2z)."""
    x, out = native.dense(x), native.empty(x.shape)
    native.library().gelu_approx(x, out, GELU_SLOPE, GELU_CUBE)
    return out
