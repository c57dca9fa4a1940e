"""Counts the bytes that a row takes in KV caches: those that grow with its tokens, and the others."""

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .kv_cache import Caches


def growth(caches: Caches) -> tuple[float, float]:
    """Returns (bytes per cached token, other bytes) of a row, from ``caches`` that hold one row.

    A sliding window counts as if it grew: an upper bound.
    """
    by_token = by_row = 0.0
    cache: Any
    for cache in caches:
        inner = growth(list(cache.caches)) if hasattr(cache, "caches") else _growth(cache)
        by_token, by_row = by_token + inner[0], by_row + inner[1]
    return by_token, by_row


def _growth(cache: Any) -> tuple[float, float]:
    by_token = by_row = 0.0
    for name, value in vars(cache).items():
        arrays = [leaf for _, leaf in tree_flatten({name: value}) if isinstance(leaf, mx.array)]
        if name in ("keys", "values"):  # [1, heads, positions, width], quantized or not
            by_token += sum(a.nbytes / a.shape[2] for a in arrays)
        else:
            by_row += sum(a.nbytes for a in arrays)
    return by_token, by_row
