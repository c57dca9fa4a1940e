"""Products of a few rows with a weight, as a step of decoding has them: [..., K] with [N, K]. Knows nothing of layers.

A BLAS copies the weight into an order of its own at each call, which for few rows takes longer than the product. The library turns
as much of it as the caches hold, and fetches what comes next meanwhile.
"""

import mlx.core as mx

from . import native

MOST = 256  # rows, from which on the BLAS is as fast


def reference(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """x weightᵀ + bias: x [..., K], weight [N, K], bias [N] -> [..., N]."""
    product = x @ weight.T
    return product if bias is None else product + bias


def suits(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> bool:
    """The chooser: float32 on the CPU, shapes that fit, and few rows."""
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or x.size > MOST * x.shape[-1]:
        return False
    if bias is not None and not (bias.shape == (weight.shape[0],) and native.suits(bias)):
        return False
    return native.suits(x, weight)


def on_cpu(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """``reference`` by the library, computed now. A row's bits depend on how many rows there are only in that up to 4 are another sum."""
    x, weight = native.dense(x), native.dense(weight)
    out = native.empty((*x.shape[:-1], weight.shape[0]))
    bias = None if bias is None else native.dense(bias)
    native.library().linear(x, weight, None if bias is None else id(bias), out)
    return out
