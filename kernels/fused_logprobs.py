"""Logprobs under logits that are a product of states with a head, none of which is kept: [N, K] with [V, K].

An array of logits takes longer to be written and read again than a softmax over it takes to compute. Where the processor multiplies in
tiles (``tiles.h``), each part of a row is reduced as it comes; its logits have the bits that ``linear`` gives them, and their sums
those of ``logprobs.softmax_sums``.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import linear, logprobs, native
from .logprobs import Scores, SoftmaxSums


@dataclass(slots=True, frozen=True)
class Product:
    """Logits [N, V] that are to be computed: x [N, K] weightᵀ + bias, weight [V, K], bias [V] or None."""

    x: mx.array
    weight: mx.array
    bias: mx.array | None = None


def reference(product: Product, targets: NDArray[np.int32], greedy: bool = False) -> Scores:
    """Scores of ``targets`` [N], a row each: logprobs, and where it is asked for whether each is its row's most likely id."""
    return logprobs.score(linear.reference(product.x, product.weight, product.bias), targets, greedy=greedy)


def suits(product: Product) -> bool:
    """The chooser: float32 on a CPU with tiles."""
    return native.tiles() and linear.suits(product.x, product.weight, product.bias)


def on_cpu(product: Product, counts: NDArray[np.intp], targets: NDArray[np.int32], greedy: bool = False) -> Scores:
    """``reference`` by the library, for ``counts`` [N] targets of each row, ``targets`` [M], one row's behind the other's.

    Raises IndexError for a target that is no column's.
    """
    if targets.size and not 0 <= targets.min() <= targets.max() < product.weight.shape[0]:
        raise IndexError(f"ids from {targets.min()} to {targets.max()} in logits of {product.weight.shape[0]}")
    x, weight = native.dense(product.x), native.dense(product.weight)
    bias = None if product.bias is None else native.dense(product.bias)
    n = x.shape[0]
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    sums, found = SoftmaxSums(np.empty(n, np.int32), np.empty(n, np.float32), np.empty(n, np.float32)), np.empty(len(targets), np.float32)
    named = np.ascontiguousarray(targets, np.int32)
    native.library().product_sums(x, weight, None if bias is None else id(bias), first, named, found, sums.best, sums.peak, sums.total)
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of NaN or of -inf comes out as NaN, and is quarantined
        found = found - np.repeat(sums.peak, counts) - np.repeat(np.log(sums.total), counts)
        return Scores(found, greedy=np.repeat(sums.best, counts) == targets if greedy else None)
