"""Tests that a row's bits in a batch do not depend on the other rows' tokens, as deterministic mode needs."""

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..layers.kv_cache import make_caches
from ..layers.network import Network


def slots_independent(network: Any, vocabulary: int, rows: int) -> bool:
    """Returns whether a row's logits keep their bits when only the other rows' tokens change, as deterministic mode needs."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, vocabulary, (rows, 12))
    second = rng.permutation(rng.integers(0, vocabulary, (rows, 12)))
    kept = range(0, rows, max(2, rows // 4))  # never all rows
    for row in kept:
        second[row] = first[row]
    a, b = (_two_steps(network, x) for x in (first, second))
    return all(np.array_equal(a[:, row], b[:, row]) for row in kept)


def _two_steps(network: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the logits [2, B, V] of two decode steps after a prefill of ``tokens`` [B, T]."""
    caches = make_caches(network, len(tokens), padded=False)
    mx.eval(Network(network)(mx.array(tokens[:, :-2]), caches))
    return np.stack([np.array(Network(network)(mx.array(tokens[:, [at]]), caches)[:, -1].astype(mx.float32)) for at in (-2, -1)])
