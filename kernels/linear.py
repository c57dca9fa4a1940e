"""Products of rows with a weight: [..., K] with [N, K], of float32 or quantized. Knows no layers.

A BLAS reorders the weight in memory in each call. For few rows that takes longer than the product. The library reorders only as much as
the caches hold, and fetches the next part meanwhile. For many rows it is as fast as a BLAS in vectors, and faster where the processor
multiplies in tiles (``matmul_amx.h``). A BLAS has threads of its own, and these wait awake and hinder the library's.
Where neither a library nor a fast BLAS for mlx is to be had (no g++), NumPy multiplies.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import backend, native, quantized
from .quantized import Matrix, QuantizedWeight

OUTPUTS = 16  # a multiple of any vector's numbers
FLOAT = 4  # bytes
LINE = 64  # bytes of a cache line


def reference(x: mx.array, weight: Matrix, bias: mx.array | None = None) -> mx.array:
    """Returns x weightᵀ + bias: x [..., K], weight [N, K], bias [N] -> [..., N]."""
    product = weight.times(x) if isinstance(weight, QuantizedWeight) else x @ weight.T
    return product if bias is None else product + bias


def packed(weight: mx.array, bias: mx.array | None = None) -> NDArray[np.float32] | None:
    """Returns a copy of a weight [N, K] and its bias [N] in the order in which the library's products read them: [1, numbers].

    Of experts' weights [E, N, K] and biases [E, N] each is packed alone: [E, numbers]. In vectors that is the order of
    ``matmul_packed.h``, in tiles that of ``amx_packed.h``, without the bias. None where tiles compute and bfloat16 does not hold the
    weight. Raises Traced.
    """
    weight = native.dense(weight)
    return _packed(weight, bias, vectors=False) if can_be_packed(weight) else None


def packed_in_vectors(weight: mx.array, bias: mx.array | None = None) -> NDArray[np.float32]:
    """Returns ``packed`` in the order of vectors, for a kernel that does not compute in tiles. Raises Traced."""
    return _packed(weight, bias, vectors=True)


def _packed(weight: mx.array, bias: mx.array | None, vectors: bool) -> NDArray[np.float32]:
    n, depth = weight.shape[-2:]
    weights = native.view(native.dense(weight)).reshape(-1, n, depth)
    biases = [None] * len(weights) if bias is None else list(native.view(native.dense(bias)).reshape(-1, n))
    out = _at_cache_lines((len(weights), int(native.library().packed_size(n, depth, vectors))))
    for one, own_bias, to in zip(weights, biases, out, strict=True):
        address = None if own_bias is None else own_bias.ctypes.data
        native.library().pack_weight(one.ctypes.data, address, n, depth, vectors, to.ctypes.data)
    return out


def can_be_packed(weight: mx.array) -> bool:
    """Returns True when ``packed`` can hold the numbers of a weight: in tiles those that bfloat16 holds. Raises Traced."""
    view = native.view(native.dense(weight))
    return bool(native.library().fits_packed(view.ctypes.data, view.size))


def _at_cache_lines(shape: tuple[int, int]) -> NDArray[np.float32]:
    """Makes an array with arbitrary contents that begins with a cache line, as do its rows where they fill lines."""
    size = math.prod(shape)
    room = np.empty(size + LINE // FLOAT, np.float32)
    first = -room.ctypes.data % LINE // FLOAT
    return room[first : first + size].reshape(shape)


@dataclass(slots=True)
class PackedWeight:
    """A packed weight, None where it can't be packed, and the arrays that it was packed of."""

    of: native.Places
    packed: NDArray[np.float32] | None

    def __deepcopy__(self, memo: Any) -> None:
        """Returns None: a copied layer packs its own weight."""


def packed_once(held: PackedWeight | None, weight: mx.array, bias: mx.array | None) -> PackedWeight:
    """Returns a weight and its bias packed: ``held``, where it was packed of what they are now. Raises Traced."""
    arrays = [weight] if bias is None else [weight, bias]
    return held if held is not None and held.of.hold(arrays) else PackedWeight(native.Places(arrays), packed(weight, bias))


def packs(weight: Matrix) -> TypeGuard[mx.array]:
    """Returns True when products may take ``packed(weight)``, by type and shape. N is a multiple of 16, as vectors are written whole."""
    if not isinstance(weight, mx.array) or weight.dtype != mx.float32 or not weight.size or weight.ndim not in (2, 3):
        return False
    return weight.shape[-2] % OUTPUTS == 0 and native.library() is not None


def bytes_packed(weight: Matrix) -> int:
    """Returns the bytes of ``packed(weight)``, if it fits; 0 where products cannot take it. Reads its shape alone."""
    return _bytes(weight, vectors=False) if packs(weight) else 0


def bytes_in_vectors(weight: mx.array) -> int:
    """Returns the bytes of ``packed_in_vectors(weight)``. Reads its shape alone."""
    return _bytes(weight, vectors=True)


def _bytes(weight: mx.array, vectors: bool) -> int:
    *experts, n, depth = weight.shape
    return FLOAT * math.prod(experts) * int(native.library().packed_size(n, depth, vectors))


def numpy_serves() -> bool:
    """Returns True where NumPy is the fastest there is: on a CPU without the library, whose mlx multiplies with its own slow BLAS."""
    return native.library() is None and backend.on_cpu_path() and backend.prepare().slow


def takes_arrays(*arrays: mx.array) -> bool:
    """Returns True when all arrays are float32 and not empty, and the library, or NumPy in its place, computes here."""
    if numpy_serves():
        return all(array.dtype == mx.float32 and array.size for array in arrays)
    return native.suits(*arrays)


def suits(x: mx.array, weight: Matrix, bias: mx.array | None = None) -> bool:
    """Returns True when ``on_cpu`` serves a product: float32 on the CPU, and shapes that fit. A quantized weight takes the library."""
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return False
    if bias is not None and bias.shape != (weight.shape[0],):
        return False
    arrays = [x] if bias is None else [x, bias]
    if isinstance(weight, QuantizedWeight):
        return native.suits(*arrays) and quantized.suits(weight)
    return takes_arrays(*arrays, weight)


def on_cpu(x: mx.array, weight: Matrix, bias: mx.array | None = None, packing: NDArray[np.float32] | None = None) -> mx.array:
    """Computes ``reference`` now, by the library, or by NumPy where there is none. packing: ``packed`` of the same weight and bias.

    By the library a row's bits do not depend on the other rows. Without tiles, calls of up to 4 rows sum in another order than larger
    ones where the weight is float32. A packed weight gives the same bits.
    """
    x = native.dense(x)
    bias = None if bias is None else native.dense(bias)
    out = native.empty((*x.shape[:-1], weight.shape[0]))
    if isinstance(weight, QuantizedWeight):
        weight = weight.dense()
        native.library().quantized_linear(x, *weight.arrays, native.maybe(bias), out, weight.bits)
        return out
    weight = native.dense(weight)
    if native.library() is None:
        made = native.view(out).reshape(-1, weight.shape[0])
        with np.errstate(all="ignore"):  # logits that are not finite are told of by row
            np.matmul(native.view(x).reshape(-1, x.shape[-1]), native.view(weight).T, out=made)
            if bias is not None:
                made += native.view(bias)
    else:
        native.library().linear(x, weight, native.maybe(bias), out, None if packing is None else packing.ctypes.data)
    return out
