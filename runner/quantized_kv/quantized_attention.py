"""Attention on packed keys and values: one softmax over tokens of few bits and early tokens as the model made them.

mlx-lm's model files call ``scaled_dot_product_attention`` of its ``base.py``, which calls ``quantized_scaled_dot_product_attention``
where a cache has ``bits``. ``install`` puts ours in that one place, for packed arrays alone. mlx-lm's own scales the caller's queries
in place, reads all keys once for each query head that shares them, and holds the scores of a whole prefill.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from ...kernels.backend import device_name
from .packed_kv import PackedKV

MOST_QUERIES = 8  # tokens of a call that reads packed numbers; longer ones, which compute more than they read, unpack them first
Mask = mx.array | str | None

_original = base.quantized_scaled_dot_product_attention


def quantized_attention(queries: mx.array, keys: PackedKV, values: PackedKV, scale: float, mask: Mask = None) -> mx.array:
    """Returns softmax(scale · q kᵀ + mask) v [B, H, T, E] of what the bits stand for. queries: [B, H, T, D]; H a multiple of K.

    mask: None; "causal", the queries being the last T of the L positions; bool, true where a key is seen; or floats to be added; arrays
    broadcast to [B, H, T, L]. A query that sees no key takes the mean of all under a bool mask.
    """
    if queries.shape[2] > MOST_QUERIES:
        return mx.fast.scaled_dot_product_attention(queries, keys.whole(), values.whole(), scale=scale, mask=mask)
    return _on_packed(queries, keys, values, scale, mask)


def _on_packed(queries: mx.array, keys: PackedKV, values: PackedKV, scale: float, mask: Mask) -> mx.array:
    b, heads, t, width = queries.shape
    _, k, length, _ = keys.shape
    options: dict[str, int] = {"group_size": keys.kv.group, "bits": keys.kv.bits}
    together = (queries * scale).reshape(b, k, heads // k * t, width)  # all queries of a key head, so that it is read once
    scores = mx.quantized_matmul(together, *_readable(keys), transpose=True, **options)
    if keys.early is not None:
        early, at = keys.is_early()
        own = together @ keys.early.swapaxes(-1, -2)
        scores = mx.where(early, mx.take_along_axis(own, mx.broadcast_to(at, scores.shape), axis=-1), scores)
    scores = _masked(scores.reshape(b, heads, t, length), mask)
    shares = mx.softmax(scores, axis=-1, precise=True).reshape(b, k, heads // k * t, length)
    if values.early is None:
        found = mx.quantized_matmul(shares, *_readable(values), transpose=False, **options)
    else:
        early, _ = values.is_early()
        found = mx.quantized_matmul(mx.where(early, 0, shares), *_readable(values), transpose=False, **options)
        found = found + _early_shares(shares, values) @ values.early
    return found.reshape(b, heads, t, -1)


def _readable(packed: PackedKV) -> Sequence[mx.array]:
    """Returns the parts as products take them: CUDA's refuse a slice of a larger array, such as the filled columns of a cache."""
    return [mx.contiguous(part) for part in packed.parts] if device_name() == "cuda" else packed.parts


def _masked(scores: mx.array, mask: Mask) -> mx.array:
    """Returns scores [B, H, T, L] under a mask."""
    if mask is None:
        return scores
    if isinstance(mask, str):
        t, length = scores.shape[-2:]
        mask = mx.arange(length - t, length)[:, None] >= mx.arange(length)[None]
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, mx.finfo(scores.dtype).min)
    return scores + mask


def _early_shares(shares: mx.array, values: PackedKV) -> mx.array:
    """Returns the shares [B, K, R, start] that early tokens have of ``shares`` [B, K, R, L]; 0 for those that a row has not yet."""
    length = shares.shape[-1]
    column = (values.pads[:, None] + mx.arange(values.kv.start))[:, None, None]
    at = mx.broadcast_to(mx.minimum(column, length - 1), (*shares.shape[:-1], values.kv.start))
    return mx.where(column < length, mx.take_along_axis(shares, at, axis=-1), 0)


def _chosen(queries: mx.array, q_keys: Any, q_values: Any, scale: float, mask: Any, group_size: int = 64, bits: int = 8) -> mx.array:
    """Takes the place of mlx-lm's function of this signature."""
    if isinstance(q_keys, PackedKV):
        return quantized_attention(queries, q_keys, q_values, scale, mask)
    return _original(queries, q_keys, q_values, scale, mask, group_size=group_size, bits=bits)


def install() -> None:
    """Lets mlx-lm's attention take packed arrays. What it takes already, it goes on to compute itself."""
    base.quantized_scaled_dot_product_attention = _chosen
