"""The ids of the k largest values of each row, by block maxima: all values are read once, and k blocks of them are sorted.

The k largest are all in the k blocks with the largest maxima (ties to the lower block): each of these holds a value that large, so no
value of another block comes before.

    blocks    9 1 0 | 3 2 2 | 1 7 5 | 0 4 3        k = 2: the blocks of 9 and 7, in which 9 and 7 are found
    maxima    9       3       7       4

``reference`` in plain mx ops is the specification, which Metal and CUDA run; ``on_cpu`` does the same in NumPy. It needs a stable
argsort. mlx documents its own as one: a merge sort on Metal and CUDA, ``std::stable_sort`` on the CPU. mlx's ``partition`` and ``topk``
gain nothing: on Metal and CUDA they sort whole rows, which moves V values some 30 times through memory. One argmax after the other moves
them 7 times for each of k.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

BLOCK = 64


def reference(x: mx.array, k: int) -> mx.array:
    """Computes the specification, unevaluated: x [N, V], k of at most V -> ids [N, k] int32, largest first, ties to the lower id."""
    n, v = x.shape
    block = _fit(v, k)
    x = padded(x, block, -mx.inf).reshape(n, -1, block)
    count = min(k, x.shape[1])
    chosen = mx.sort(mx.argsort(-x.max(axis=-1), axis=-1)[:, :count].astype(mx.int32), axis=-1)  # ascending, and so are the ids
    ids = (chosen[:, :, None] * block + mx.arange(block, dtype=mx.int32)).reshape(n, -1)
    values = mx.take_along_axis(x, chosen[:, :, None], axis=1).reshape(n, -1)
    order = mx.argsort(-values, axis=-1)[:, :k]
    return mx.minimum(mx.take_along_axis(ids, order, axis=-1), v - 1)  # NaN sorts behind the last block's padding


def padded(x: mx.array, block: int, value: float) -> mx.array:
    """Returns x [N, V] with as much ``value`` behind each row as makes V a multiple of ``block``; x itself where it is one."""
    spare = -x.shape[1] % block
    return mx.concatenate([x, mx.full((x.shape[0], spare), value, dtype=x.dtype)], axis=1) if spare else x


def _fit(v: int, k: int) -> int:
    """Returns a block's size: with blocks of sqrt(V / k) as many maxima are sorted as values in the chosen blocks."""
    return next((size for size in (64, 32) if size * size * k <= 2 * v), 16)


def on_cpu(x: NDArray[np.float32], k: int) -> NDArray[np.int32]:
    """Computes ``reference`` in NumPy."""
    n, v = x.shape
    blocks = -(-v // BLOCK)
    peaks = np.maximum.reduceat(x, np.arange(0, v, BLOCK), axis=1)  # (N, blocks)
    chosen = np.sort(np.argsort(-peaks, axis=1, kind="stable")[:, : min(k, blocks)], axis=1)
    ids = (chosen[:, :, None] * BLOCK + np.arange(BLOCK)).reshape(n, chosen.shape[1] * BLOCK)  # ascending
    values = np.where(ids < v, np.take_along_axis(x, np.minimum(ids, v - 1), axis=1), -np.inf)
    order = np.lexsort((ids, -values), axis=1)[:, :k]
    return np.minimum(np.take_along_axis(ids, order, axis=1), v - 1).astype(np.int32)  # NaN sorts behind the last block's padding
