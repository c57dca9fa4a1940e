"""Tempered logprobs: log_softmax of logits / temperature at a token, as trainers compute it.

No penalty, bias or filter enters; temperature 0 counts as 1. Metal and CUDA run ``reference``, the specification in plain mx ops;
``on_cpu`` does the same in NumPy. Rows are independent.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..backend import on_cpu_path
from ..logprobs import sum_by_blocks

Floats = NDArray[np.float32]


def tempered(logits: mx.array, ids: NDArray[np.int32], temperature: Floats) -> Floats:
    """Returns logprobs [N] of ``ids`` [N] under ``logits`` [N, V], of any float type, at ``temperature`` [N]; one evaluation."""
    if on_cpu_path():
        logits = logits.astype(mx.float32)
        mx.eval(logits)
        return on_cpu(np.array(logits, copy=False), ids, temperature)
    return np.array(reference(logits, mx.array(ids), temperature))


def divisor(temperature: Floats) -> Floats:
    """Returns what logits are divided by [N]: 1 where a row is greedy."""
    return np.where(temperature == 0, np.float32(1), temperature)


def reference(logits: mx.array, ids: mx.array, temperature: Floats) -> mx.array:
    """Computes the specification: logits [N, V], ids [N], temperature [N] -> [N] float32, unevaluated."""
    x = logits.astype(mx.float32)
    z = (x - x.max(axis=-1, keepdims=True)) / mx.array(divisor(temperature))[:, None]
    return (mx.take_along_axis(z, ids[:, None], axis=-1) - mx.log(sum_by_blocks(mx.exp(z))))[:, 0]


def on_cpu(x: Floats, ids: NDArray[np.int32], temperature: Floats) -> Floats:
    """Computes ``reference`` in NumPy: logits [N, V] float32, which stay as they are."""
    with np.errstate(divide="ignore", invalid="ignore"):  # a row of NaN stays one
        z = x - x.max(axis=1, keepdims=True)
        z /= divisor(temperature)[:, None]
        at = z[np.arange(len(z)), ids]  # a copy: exp overwrites z
        return (at - np.log(np.exp(z, out=z).sum(axis=1, dtype=np.float64))).astype(np.float32)
