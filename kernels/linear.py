"""Products of rows with a weight: [..., K] with [N, K]. Knows nothing of layers.

A BLAS copies the weight into an order of its own at each call, which for few rows takes longer than the product. The library turns
as much of it as the caches hold, and fetches what comes next meanwhile. Where the processor multiplies in tiles (``tiles.h``) it is
faster for any number of rows.
"""

import mlx.core as mx

from . import native

MOST = 256  # rows, from which on a BLAS is as fast as the vectors are


def reference(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """x weightᵀ + bias: x [..., K], weight [N, K], bias [N] -> [..., N]."""
    product = x @ weight.T
    return product if bias is None else product + bias


def suits(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> bool:
    """The chooser: float32 on the CPU, shapes that fit, and few rows where there are no tiles."""
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return False
    if bias is not None and not (bias.shape == (weight.shape[0],) and native.suits(bias)):
        return False
    return native.suits(x, weight) and (x.size <= MOST * x.shape[-1] or native.tiles())


def on_cpu(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """``reference`` by the library, computed now.

    A row's bits do not depend on the other rows; without tiles, up to 4 are another sum than more.
    """
    x, weight = native.dense(x), native.dense(weight)
    out = native.empty((*x.shape[:-1], weight.shape[0]))
    bias = None if bias is None else native.dense(bias)
    native.library().linear(x, weight, None if bias is None else id(bias), out)
    return out
