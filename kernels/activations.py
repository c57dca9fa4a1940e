"""Activations of feed-forward layers, [..., D] elementwise: swiglu, silu, gelu's tanh form. Float32 on the CPU is fast.

Each has its specification in mx's ops, and the CPU's version on the polynomial exp, as x / (1 + exp(-z)). Which of the two suits
is ``exponential.suits``. Nothing here knows of models.
"""

import mlx.core as mx
import mlx.nn as nn

from .exponential import HIGHEST, Compiled, polynomial

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


def _one_and_exp(x: mx.array) -> mx.array:
    """1 + exp(-x), or 1.7e38 where that is more: dividing by it multiplies by sigmoid(x)."""
    return 1.0 + polynomial(mx.where(x < -HIGHEST, HIGHEST, -x))


def _swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate * x / _one_and_exp(gate)


def _silu(x: mx.array) -> mx.array:
    return x / _one_and_exp(x)


def _gelu_approx(x: mx.array) -> mx.array:
    return x / _one_and_exp(GELU_SLOPE * (x + GELU_CUBE * x * x * x))  # (1 + tanh(z)) / 2 = sigmoid(2z)


swiglu_on_cpu = Compiled(_swiglu)
silu_on_cpu = Compiled(_silu)
gelu_approx_on_cpu = Compiled(_gelu_approx)
