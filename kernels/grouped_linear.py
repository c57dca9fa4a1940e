"""Products of rows with one of several weights each, as a mixture of experts needs them (grouped GEMM). Knows no layers.

On a CPU mlx multiplies row by row, so it reads an expert's weight from memory once for each of its rows. Here the rows of an expert are
gathered, and its weight is read once. A weight in half precision is turned into float32 expert by expert, those alone that have rows.
Where neither a library nor a fast BLAS for mlx is to be had (no g++), NumPy multiplies.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import linear, native, quantized
from .quantized import Matrix, QuantizedWeight

HALF = (mx.float16, mx.bfloat16)


def reference(x: mx.array, weight: Matrix, indices: mx.array, bias: mx.array | None = None) -> mx.array:
    """Returns x[..., 1, K] times weight [E, N, K] of the expert that indices [...] name, plus bias [E, N] -> [..., 1, N].

    The axes before the last two of x broadcast with those of ``indices``. A weight in half precision is multiplied in float32.
    """
    if isinstance(weight, QuantizedWeight):
        product = mx.gather_qmm(x, *weight.arrays, rhs_indices=indices, transpose=True, group_size=weight.group, bits=weight.bits)
    else:
        whole = weight.astype(mx.float32) if weight.dtype in HALF else weight
        product = mx.gather_mm(x, whole.swapaxes(-1, -2), rhs_indices=indices)
    return product if bias is None else product + mx.expand_dims(bias[indices], -2)


def suits(x: mx.array, weight: Matrix, indices: mx.array, bias: mx.array | None = None) -> bool:
    """Returns True when ``on_cpu`` serves a call: float32 on the CPU, integer indices, and shapes that fit.

    The weight may be in half precision, or quantized, which takes the library.
    """
    if x.ndim < 2 or weight.ndim != 3 or x.shape[-2] != 1 or x.shape[-1] != weight.shape[2] or not mx.issubdtype(indices.dtype, mx.integer):
        return False
    if bias is not None and not (bias.shape == weight.shape[:2] and linear.takes_arrays(bias)):
        return False
    lead = (1,) * (indices.ndim - x.ndim + 2) + x.shape[:-2]
    broad = x.ndim - 2 <= indices.ndim and all(n in (1, of) for n, of in zip(lead, indices.shape, strict=True))
    if isinstance(weight, QuantizedWeight):
        return broad and indices.size > 0 and quantized.suits(weight) and native.suits(x)
    return broad and indices.size > 0 and weight.size > 0 and linear.takes_arrays(*([x] if weight.dtype in HALF else [x, weight]))


def on_cpu(
    x: mx.array, weight: Matrix, indices: mx.array, bias: mx.array | None = None, packing: NDArray[np.float32] | None = None
) -> mx.array:
    """Computes ``reference`` now, by the library, or by NumPy where there is none. packing: ``linear.packed`` of the same weight and bias.

    By the library a row's bits do not depend on the other rows, only on the number of indices. A packed weight gives the same bits.

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
    if isinstance(weight, QuantizedWeight):
        native.library().quantized_grouped(x, *weight.arrays, native.maybe(bias), sources, places, ends, out, weight.bits)
    elif weight.dtype == mx.float32 and native.library() is not None:
        address = None if packing is None else packing.ctypes.data
        native.library().grouped(x, weight, native.maybe(bias), sources, places, ends, out, address)
    else:
        _by_experts(x, weight, bias, sources, places, ends, out)
    return out


def copied_bytes(weight: mx.array) -> int:
    """Returns the bytes that ``on_cpu``, or else ``reference``, takes for a weight [E, N, K] in half precision: its float32 copies."""
    copied = weight.size // weight.shape[0] if linear.takes_arrays() else weight.size
    return copied * mx.float32.size if weight.dtype in HALF else 0


def _by_experts(
    x: mx.array, weight: mx.array, bias: mx.array | None, sources: NDArray[np.int64], places: NDArray[np.int64], ends: NDArray[np.int64],
    out: mx.array,
) -> None:  # fmt: skip
    """Fills ``out`` expert by expert: the products ends[e - 1] ... ends[e] - 1 are those of expert e, from rows of x to places of out."""
    rows, made = native.view(x).reshape(-1, x.shape[-1]), native.view(out).reshape(-1, weight.shape[1])
    for expert, (first, end) in enumerate(zip(np.r_[0, ends[:-1]].tolist(), ends.tolist(), strict=True)):
        if first == end:
            continue
        own = native.dense(weight[expert : expert + 1].astype(mx.float32))
        own_bias = None if bias is None else native.dense(bias[expert : expert + 1])
        if native.library() is None:
            with np.errstate(all="ignore"):  # logits that are not finite are told of by row
                product = rows[sources[first:end]] @ native.view(own)[0].T
                made[places[first:end]] = product if own_bias is None else product + native.view(own_bias)
        else:  # the library chooses its way by the number of all products, so it is given all, this expert's first
            turned = np.roll(sources, -first), np.roll(places, -first)
            native.library().grouped(x, own, native.maybe(own_bias), *turned, np.array([end - first]), out, None)
