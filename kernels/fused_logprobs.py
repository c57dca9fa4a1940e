"""Logprobs of hidden states times an LM head, [N, K] with [V, K], without an array of logits.

Writing and reading an array of logits takes longer than its softmax. Here each part of a row is reduced as soon as it is computed. Logits
have the bits of ``linear``, sums those of ``logprobs.softmax_sums``.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import linear, logprobs, native
from .logprobs import Scores, SoftmaxSums
from .quantized import Matrix, QuantizedWeight


@dataclass(slots=True, frozen=True)
class Product:
    """Logits [N, V] not computed yet: x [N, K] weightᵀ + bias, with weight [V, K] and bias [V] or None.

    cap: they are cap · tanh(logit / cap) of that (Gemma 2), 0 for none. packing: ``linear.packed`` of weight and bias, or None.
    """

    x: mx.array
    weight: Matrix
    bias: mx.array | None = None
    cap: float = 0.0
    packing: NDArray[np.float32] | None = None

    def logits(self) -> mx.array:
        """Computes them by mlx's operations."""
        logits = linear.reference(self.x, self.weight, self.bias)
        return self.cap * mx.tanh(logits / self.cap) if self.cap else logits


def reference(product: Product, targets: NDArray[np.int32], greedy: bool = False) -> Scores:
    """Scores ``targets`` [N], one per row: logprobs, and with ``greedy`` which are their row's most likely id."""
    return logprobs.score(product.logits(), targets, greedy=greedy)


def suits(product: Product) -> bool:
    """Returns True when the library serves a product: float32 on a CPU."""
    return native.library() is not None and linear.suits(product.x, product.weight, product.bias)


def on_cpu(product: Product, counts: NDArray[np.intp], targets: NDArray[np.int32], greedy: bool = False) -> Scores:
    """Computes ``reference`` by the library, for ``counts`` [N] targets per row; ``targets`` [M] are sorted by row.

    Raises IndexError for a target beyond the vocabulary.
    """
    if targets.size and not 0 <= targets.min() <= targets.max() < product.weight.shape[0]:
        raise IndexError(f"ids from {targets.min()} to {targets.max()} in logits of {product.weight.shape[0]}")
    x, weight = native.dense(product.x), product.weight
    weight = weight.dense() if isinstance(weight, QuantizedWeight) else native.dense(weight)
    bias = None if product.bias is None else native.dense(product.bias)
    n = x.shape[0]
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    sums, logits = SoftmaxSums(np.empty(n, np.int32), np.empty(n, np.float32), np.empty(n, np.float32)), np.empty(len(targets), np.float32)
    ids = np.ascontiguousarray(targets, np.int32)
    rest = native.maybe(bias), first, ids, logits, sums.best, sums.peak, sums.total, product.cap
    if isinstance(weight, QuantizedWeight):
        native.library().quantized_product_sums(x, *weight.arrays, *rest, weight.bits)
    else:
        native.library().product_sums(x, weight, *rest, None if product.packing is None else product.packing.ctypes.data)
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of NaN or of -inf comes out as NaN, and is quarantined
        values = logits - np.repeat(sums.peak, counts) - np.repeat(np.log(sums.total), counts)
        return Scores(values, greedy=np.repeat(sums.best, counts) == targets if greedy else None)
