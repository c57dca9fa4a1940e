"""Pools hidden states to one vector a row, as sentence-transformers' ``Pooling`` does.

Rows are padded on the right, and may begin with a prompt that does not count:

    a b c d . .    lengths 4, starts 2
        x x        counted: nothing else is, whatever pads hold
"""

import mlx.core as mx

from .spec import PoolingMode


def pool(states: mx.array, lengths: mx.array, starts: mx.array, mode: PoolingMode) -> mx.array:
    """Returns vectors [B, H] of states [B, T, H]. Where no token of a row counts, its vector is NaN.

    lengths [B]: tokens of each row, which stand on the left. starts [B]: the first token that counts. ``cls`` is that token,
    ``lasttoken`` the last. ``weightedmean`` weighs a token by its place in the row, from 1, also where a prompt is left out.
    """
    if mode == "cls":
        vectors = _states_at(states, starts)
    elif mode == "lasttoken":
        vectors = _states_at(states, lengths - 1)
    else:
        vectors = _of_counted(states, lengths, starts, mode)
    return mx.where((starts < lengths)[:, None], vectors, mx.nan)


def _states_at(states: mx.array, at: mx.array) -> mx.array:
    at = mx.clip(at, 0, states.shape[1] - 1)
    return mx.take_along_axis(states, at[:, None, None], axis=1)[:, 0]


def _of_counted(states: mx.array, lengths: mx.array, starts: mx.array, mode: PoolingMode) -> mx.array:
    at = mx.arange(states.shape[1])[None]
    counted = (at >= starts[:, None]) & (at < lengths[:, None])
    if mode == "max":
        return mx.where(counted[..., None], states, -mx.inf).max(axis=1)
    states = mx.where(counted[..., None], states, 0)  # not a product: what a pad holds may be NaN
    if mode == "weightedmean":
        weights = mx.where(counted, at + 1, 0).astype(states.dtype)
        return (states * weights[..., None]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    count = (lengths - starts)[:, None].astype(states.dtype)
    return states.sum(axis=1) / (count if mode == "mean" else mx.sqrt(count))
