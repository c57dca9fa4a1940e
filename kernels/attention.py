"""Attention on the CPU as grouped matrix products and a fast exp, tile by tile. Knows nothing of caches or models.

The queries are cut so that a tile's scores stay in the cache, and under a causal mask the keys behind a tile's last query are
never looked at:

    queries   a | x x x x . . . . .      T = 6 queries at the end of L = 9 keys, in tiles of 3
              b | x x x x x . . . .
              c | x x x x x x - - -      - is masked and not computed, . is masked
              d | x x x x x x x . .
"""

import mlx.core as mx

from .exponential import on_cpu as exp

QUERIES = 64  # of a tile
TILE_BYTES = 2 << 20  # of a tile's scores: about what a core's second cache holds

Mask = mx.array | str | None


def reference(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask = None) -> mx.array:
    """softmax(scale · q kᵀ + mask) v, the specification (Vaswani et al. 2017; grouped queries: Ainslie et al. 2023).

    q: [B, H, T, D]; k: [B, K, L, D] and v: [B, K, L, E] with H a multiple of K -> [B, H, T, E]. mask: None; "causal", the
    queries being the last T of the L positions; bool, true where a key is seen; or float32 to be added; arrays broadcast to
    [B, H, T, L]. A query that sees no key takes the mean of all under a bool mask (as mx's), and is NaN under one of -inf.
    """
    groups = q.shape[1] // k.shape[1]
    scores = scale * q @ mx.repeat(k, groups, axis=1).swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = _causal(*scores.shape[-2:])
    if mask is not None:
        scores = mx.where(mask, scores, mx.finfo(mx.float32).min) if mask.dtype == mx.bool_ else scores + mask
    return mx.softmax(scores, axis=-1) @ mx.repeat(v, groups, axis=1)


def on_cpu(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask = None) -> mx.array:
    """``reference`` for float32, with temporaries of at most 2 MB (of one query's scores, where those take more)."""
    b, h, t, d = q.shape
    kv, length = k.shape[1], k.shape[2]
    q = (scale * q).reshape(b, kv, h // kv, t, d)
    if isinstance(mask, mx.array):
        mask = _grouped(mask, kv, h)
    wide = min(t, QUERIES)
    rows = max(1, TILE_BYTES // (4 * h * wide * length))
    wide = max(1, min(wide, TILE_BYTES // (4 * h * length)))
    out: list[mx.array] = []
    for row in range(0, b, rows):
        at = slice(row, row + rows)
        tiles = [_tile(q[at], k[at], v[at], start, min(t, start + wide), _of_rows(mask, at)) for start in range(0, t, wide)]
        out.append(_joined(tiles, axis=3))
    return _joined(out, axis=0).reshape(b, h, t, v.shape[-1])


def _tile(q: mx.array, k: mx.array, v: mx.array, start: int, stop: int, mask: Mask) -> mx.array:
    """Queries ``start`` to ``stop`` of q [B, K, G, T, D] over k [B, K, L, D], v [B, K, L, E] -> [B, K, G, stop - start, E]."""
    b, kv, groups, t, d = q.shape
    n, length = stop - start, k.shape[2]
    seen = length - t + stop if isinstance(mask, str) else length
    scores = (q[..., start:stop, :].reshape(b, kv, groups * n, d) @ k[:, :, :seen].swapaxes(-1, -2)).reshape(b, kv, groups, n, seen)
    if isinstance(mask, str) and n > 1:
        scores = scores + mx.where(_causal(n, seen), 0.0, -mx.inf)
    elif isinstance(mask, mx.array):
        part = mask[..., start:stop, :] if mask.shape[-2] > 1 else mask
        scores = mx.where(part, scores, mx.finfo(mx.float32).min) if part.dtype == mx.bool_ else scores + part
    weights = exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    return (weights.reshape(b, kv, groups * n, seen) @ v[:, :, :seen]).reshape(b, kv, groups, n, v.shape[-1]) / total


def _causal(t: int, length: int) -> mx.array:
    """[t, length] bool: the queries are the last t positions, and see themselves and what stands before."""
    return mx.arange(length - t, length)[:, None] >= mx.arange(length)[None]


def _grouped(mask: mx.array, kv: int, heads: int) -> mx.array:
    """A mask that broadcasts to [B, H, T, L] as one that does to [B, K, G, T, L]."""
    mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
    b, h, t, length = mask.shape
    return mask.reshape(b, kv, heads // kv, t, length) if h > 1 else mask[:, :, None]


def _of_rows(mask: Mask, at: slice) -> Mask:
    return mask[at] if isinstance(mask, mx.array) and mask.shape[0] > 1 else mask


def _joined(parts: list[mx.array], axis: int) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=axis)
