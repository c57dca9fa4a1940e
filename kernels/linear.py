"""Products of rows with a weight: [..., K] with [N, K]. Knows no layers.

A BLAS reorders the weight in memory in each call. For few rows that takes longer than the product. The library reorders only as much as
the caches hold, and fetches the next part meanwhile. Where the processor multiplies in tiles (``matmul_amx.h``) it is faster for any
number of rows.
"""

import mlx.core as mx

from . import native

MOST = 256  # rows: with more, a BLAS is as fast as the library's vectors


def reference(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Returns x weightᵀ + bias: x [..., K], weight [N, K], bias [N] -> [..., N]."""
    product = x @ weight.T
    return product if bias is None else product + bias


def suits(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> bool:
    """Returns True when the library serves a product: float32 on the CPU, shapes that fit, and few rows if there are no tiles."""
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return False
    if bias is not None and not (bias.shape == (weight.shape[0],) and native.suits(bias)):
        return False
    return native.suits(x, weight) and (x.size <= MOST * x.shape[-1] or native.tiles())


def on_cpu(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """Computes ``reference`` now, by the library.

    A row's bits do not depend on the other rows. Without tiles, calls of up to 4 rows sum in another order than larger ones.
    """
    x, weight = native.dense(x), native.dense(weight)
    out = native.empty((*x.shape[:-1], weight.shape[0]))
    bias = None if bias is None else native.dense(bias)
    native.library().linear(x, weight, None if bias is None else id(bias), out)
    return out
