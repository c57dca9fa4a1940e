"""Pools hidden states to one vector a row, as sentence-transformers' ``Pooling`` does. Pads stand on the right and never count."""

import mlx.core as mx

from .spec import PoolingMode


def pool(states: mx.array, lengths: mx.array, starts: mx.array, mode: PoolingMode) -> mx.array:
    """Returns vectors [B, H] of states [B, T, H].

    lengths [B]: tokens of each row; starts [B]: the first token that counts. ``cls`` is the first token and ``lasttoken`` the last.
    """
    if mode == "cls":
        return states[:, 0]
    width = states.shape[1]
    if mode == "lasttoken":
        return mx.take_along_axis(states, (lengths - 1)[:, None, None], axis=1)[:, 0]
    at = mx.arange(width)[None]
    counted = ((at >= starts[:, None]) & (at < lengths[:, None]))[..., None]
    if mode == "max":
        return mx.where(counted, states, -mx.inf).max(axis=1)
    states = mx.where(counted, states, 0)  # not a product: what a pad holds may be NaN
    count = (lengths - starts)[:, None].astype(states.dtype)
    if mode == "weightedmean":
        weights = mx.where(counted[..., 0], at + 1, 0).astype(states.dtype)
        return (states * weights[..., None]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    return states.sum(axis=1) / (count if mode == "mean" else mx.sqrt(count))
