"""A convolution of each channel over the last few tokens, which stands before many recurrent layers."""

import mlx.core as mx

from .. import native


def reference(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Returns y [B, T, C] with y[t, c] = Σ x[t + s, c] · weight[c, s] + bias[c]. x: [B, T + S - 1, C]; weight: [C, S, 1], as in mlx."""
    product = mx.conv1d(x, weight, groups=weight.shape[0])
    return product if bias is None else product + bias


def suits(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> bool:
    """Returns True when the library serves a call: float32 on the CPU, and shapes that fit."""
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[2] != 1 or x.shape[2] != weight.shape[0] or x.shape[1] < weight.shape[1]:
        return False
    return native.suits(x, weight) and (bias is None or (bias.shape == (x.shape[2],) and native.suits(bias)))


def on_cpu(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Computes ``reference`` now, by the library. Raises Traced."""
    x, weight = native.dense(x), native.dense(weight)
    bias = None if bias is None else native.dense(bias)
    y = native.empty((x.shape[0], x.shape[1] - weight.shape[1] + 1, x.shape[2]))
    native.library().short_convolution(x, weight, None if bias is None else id(bias), y)
    return y
