"""Products of rows with one of several weights each, as a mixture of experts needs them (grouped GEMM). Knows no layers.

On a CPU mlx multiplies row by row, so it reads an expert's weight from memory once for each of its rows. Here the rows of an expert are
gathered, and its weight is read once.
"""

import mlx.core as mx
import numpy as np

from . import native, quantized
from .quantized import Matrix, QuantizedWeight


def reference(x: mx.array, weight: Matrix, indices: mx.array, bias: mx.array | None = None) -> mx.array:
    """Returns x[..., 1, K] times weight [E, N, K] of the expert that indices [...] name, plus bias [E, N] -> [..., 1, N].

    The axes before the last two of x broadcast with those of ``indices``.
    """
    if isinstance(weight, QuantizedWeight):
        product = mx.gather_qmm(x, *weight.arrays, rhs_indices=indices, transpose=True, group_size=weight.group, bits=weight.bits)
    else:
        product = mx.gather_mm(x, weight.swapaxes(-1, -2), rhs_indices=indices)
    return product if bias is None else product + mx.expand_dims(bias[indices], -2)


def suits(x: mx.array, weight: Matrix, indices: mx.array, bias: mx.array | None = None) -> bool:
    """Returns True when the library serves a call: float32 on the CPU, integer indices, and shapes that fit."""
    if x.ndim < 2 or weight.ndim != 3 or x.shape[-2] != 1 or x.shape[-1] != weight.shape[2] or not mx.issubdtype(indices.dtype, mx.integer):
        return False
    if bias is not None and not (bias.shape == weight.shape[:2] and native.suits(bias)):
        return False
    lead = (1,) * (indices.ndim - x.ndim + 2) + x.shape[:-2]
    broad = x.ndim - 2 <= indices.ndim and all(n in (1, of) for n, of in zip(lead, indices.shape, strict=True))
    served = quantized.suits(weight) if isinstance(weight, QuantizedWeight) else native.suits(weight)
    return broad and indices.size > 0 and served and native.suits(x)


def on_cpu(x: mx.array, weight: Matrix, indices: mx.array, bias: mx.array | None = None) -> mx.array:
    """Computes ``reference`` now, by the library. A row's bits do not depend on the other rows, only on the number of indices.

    Raises Traced, and IndexError for an expert that is not there.
    """
    native.evaluate_arrays(indices)
    x, weight = native.dense(x), weight.dense() if isinstance(weight, QuantizedWeight) else native.dense(weight)
    bias = None if bias is None else native.dense(bias)
    experts = native.view(indices).astype(np.int64).reshape(-1)
    if not 0 <= experts.min() <= experts.max() < weight.shape[0]:
        raise IndexError(f"experts {experts.min()} to {experts.max()} of {weight.shape[0]}")
    rows = np.broadcast_to(np.arange(x.size // x.shape[-1]).reshape(x.shape[:-2]), indices.shape).reshape(-1)
    order = np.argsort(experts, kind="stable")
    ends = np.cumsum(np.bincount(experts, minlength=weight.shape[0])).astype(np.int64)
    out = native.empty((*indices.shape, 1, weight.shape[1]))
    sources, places = np.ascontiguousarray(rows[order], np.int64), order.astype(np.int64)
    rest = native.maybe(bias), sources, places, ends, out
    if isinstance(weight, QuantizedWeight):
        native.library().quantized_grouped(x, *weight.arrays, *rest, weight.bits)
    else:
        native.library().grouped(x, weight, *rest)
    return out
