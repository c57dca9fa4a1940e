"""Attention on the CPU, tile by tile: scores, softmax and the sum of values in one pass. Knows no caches and no models.

Queries are cut into tiles whose scores stay in the processor's cache. Under a causal mask the keys after a tile's last query are never
read:

    queries   a | x x x x . . . . .      T = 6 queries at the end of L = 9 keys, in tiles of 3
              b | x x x x x . . . .
              c | x x x x x x - - -      - is masked and not computed, . is masked
              d | x x x x x x x . .

Where neither a library nor a fast BLAS for mlx is to be had (no g++), NumPy computes such tiles.
"""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import linear, native

Mask = mx.array | str | None

NONE, CAUSAL, SEEN, ADDED = range(4)  # attention.h's Mask
NUMPY_SCORES = 1 << 20  # that NumPy holds at once: 4 MB, and as much again for what it makes of them


def reference(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask = None, sinks: mx.array | None = None, cap: float = 0.0
) -> mx.array:
    """Returns softmax(scale · q kᵀ + mask) v, the specification (Vaswani et al. 2017; grouped queries: Ainslie et al. 2023).

    q: [B, H, T, D]; k: [B, K, L, D] and v: [B, K, L, E] with H a multiple of K -> [B, H, T, E]. mask: None; "causal", the
    queries being the last T of the L positions; bool, true where a key is seen; or float32 to be added; arrays broadcast to
    [B, H, T, L]. A query that sees no key takes the mean of all under a bool mask (as mx's), and is NaN under one of -inf.
    sinks [H]: each head's score for no key, which has no value (Xiao et al. 2024; gpt-oss). cap: scores are cap · tanh(score / cap)
    before the mask (Gemma 2), 0 for none.
    """
    groups = q.shape[1] // k.shape[1]
    scores = scale * q @ mx.repeat(k, groups, axis=1).swapaxes(-1, -2)
    if cap:
        scores = cap * mx.tanh(scores / cap)
    if isinstance(mask, str):
        mask = _causal(*scores.shape[-2:])
    if mask is not None:
        scores = mx.where(mask, scores, mx.finfo(mx.float32).min) if mask.dtype == mx.bool_ else scores + mask
    if sinks is not None:
        scores = mx.concatenate([scores, mx.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))], axis=-1)
    return mx.softmax(scores, axis=-1)[..., : k.shape[2]] @ mx.repeat(v, groups, axis=1)


def suits(q: mx.array, k: mx.array, v: mx.array, mask: Mask, sinks: mx.array | None = None) -> bool:
    """Returns True when ``on_cpu`` serves a call: float32 on the CPU, and shapes that fit. Over no key, mlx gives zeros."""
    if not linear.takes_arrays(q, k, v) or any(x.ndim != 4 for x in (q, k, v)):
        return False
    if sinks is not None and not (sinks.shape == (q.shape[1],) and linear.takes_arrays(sinks)):
        return False
    (b, h, t, d), (rows, kv, length, width) = q.shape, k.shape
    return (rows, width, v.shape[:3]) == (b, d, (b, kv, length)) and length > 0 and h % kv == 0 and fits(mask, (b, h, t, length))


def fits(mask: Mask, scores: tuple[int, int, int, int]) -> bool:
    """Returns True when a mask fits scores [B, H, T, L]."""
    if isinstance(mask, mx.array):
        broad = mask.ndim <= 4 and all(n in (1, of) for n, of in zip(mask.shape[::-1], scores[::-1], strict=False))
        return broad and mask.dtype in (mx.bool_, mx.float32)
    return mask is None or (mask == "causal" and scores[2] <= scores[3])


def on_cpu(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask = None, sinks: mx.array | None = None, cap: float = 0.0
) -> mx.array:
    """Computes ``reference`` now, by the library, or by NumPy where there is none.

    In memory the result is [B, T, H, E], as the next projection needs it.
    """
    if native.library() is None:
        return _by_numpy(q, k, v, scale, mask, sinks, cap)
    kind, seen = kind_of(mask)
    native.evaluate_arrays(q, k, v, *([] if seen is None else [seen]))
    q, k, v = (x if _by_numbers(x) else native.dense(x) for x in (q, k, v))
    b, h, t, _ = q.shape
    out = native.empty((b, t, h, v.shape[-1]))
    sinks = None if sinks is None else native.dense(sinks)
    native.library().attention(q, k, v, native.maybe(seen), native.maybe(sinks), out, scale, cap, kind)
    return out.transpose(0, 2, 1, 3)


def kind_of(mask: Mask) -> tuple[int, mx.array | None]:
    """Returns the library's number of the mask's kind, and the mask with four axes if it is an array."""
    if mask is None or isinstance(mask, str):
        return (NONE if mask is None else CAUSAL), None
    return (SEEN if mask.dtype == mx.bool_ else ADDED), mask if mask.ndim == 4 else mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)


def _by_numpy(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask, sinks: mx.array | None, cap: float) -> mx.array:
    """Computes ``reference`` on the arrays' own memory. Heads that share keys are one product."""
    kind, seen = kind_of(mask)
    native.evaluate_arrays(*(x for x in (q, k, v, seen, sinks) if x is not None))
    (b, h, t, _), (_, kv, length, _) = q.shape, k.shape
    by_group = (b, kv, h // kv, t)
    queries, keys, values = native.view(q).reshape(*by_group, -1), native.view(k), native.view(v)
    given = None if seen is None else np.broadcast_to(native.view(seen), (b, h, t, length)).reshape(*by_group, length)
    sink = None if sinks is None else native.view(sinks).reshape(kv, h // kv, 1)
    out = native.empty((b, t, h, v.shape[-1]))
    made = native.view(out).reshape(b, t, kv, h // kv, -1).transpose(0, 2, 3, 1, 4)
    with np.errstate(all="ignore"):  # logits that are not finite are told of by row
        for rows, heads, some in _tiles(by_group, length):
            end = length - t + some.stop if kind == CAUSAL else length  # keys after it are masked
            own = np.multiply(queries[rows, heads, :, some], np.float32(scale), order="C")
            scores = _joined(own) @ keys[rows, heads, :end].swapaxes(-1, -2)
            scores = scores.reshape(*own.shape[:-1], end)
            if cap:
                np.multiply(np.tanh(np.divide(scores, np.float32(cap), out=scores), out=scores), np.float32(cap), out=scores)
            if kind == CAUSAL:
                later = np.arange(end) > np.arange(end - own.shape[3], end)[:, None]
                np.copyto(scores, np.float32(-np.inf), where=later)
            elif given is not None and given.dtype == bool:
                np.copyto(scores, np.finfo(np.float32).min, where=~given[rows, heads, :, some])
            elif given is not None:
                scores += given[rows, heads, :, some]
            sums = _exponentials(scores, None if sink is None else sink[heads])
            product = (_joined(scores) @ values[rows, heads, :end]).reshape(*own.shape[:-1], -1)
            np.divide(product, sums, out=made[rows, heads, :, some])
    return out.transpose(0, 2, 1, 3)


def _tiles(by_group: tuple[int, int, int, int], length: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yields slices of rows, of heads of keys, and of queries, whose scores are about ``NUMPY_SCORES`` or fewer.

    by_group: rows, heads of keys, queries' heads for each, queries. Tiles are whole rows, or parts of one head: a row's bits do not
    depend on how many rows there are.
    """
    b, kv, groups, t = by_group
    head = groups * t * length
    rows = max(1, NUMPY_SCORES // (kv * head))
    heads = kv if kv * head <= NUMPY_SCORES else 1
    queries = t if head <= NUMPY_SCORES else max(1, NUMPY_SCORES // (groups * length))
    for row in range(0, b, rows):
        for first in range(0, kv, heads):
            for query in range(0, t, queries):
                yield slice(row, min(row + rows, b)), slice(first, first + heads), slice(query, min(query + queries, t))


def _joined(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns [B, K, G, T, N] as [B, K, G * T, N]."""
    b, kv, groups, t, n = x.shape
    return x.reshape(b, kv, groups * t, n)


def _exponentials(scores: NDArray[np.float32], sink: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Turns scores [B, K, G, T, L] into exponentials in place, their largest 1. Returns the sums [B, K, G, T, 1], a sink's with them."""
    peaks = scores.max(axis=-1, keepdims=True)
    if sink is not None:
        peaks = np.maximum(peaks, sink[..., None])
    scores -= peaks
    np.exp(scores, out=scores)
    sums = scores.sum(axis=-1, keepdims=True)
    return sums if sink is None else sums + np.exp(sink[..., None] - peaks)


def _by_numbers(x: mx.array) -> bool:
    """Returns True when the numbers of a head are adjacent in memory."""
    strides = native.layout(x).strides
    return strides is not None and strides[-1] == x.itemsize


def _causal(t: int, length: int) -> mx.array:
    """Returns bool [t, length]: the queries are the last t positions; each sees itself and all before it."""
    return mx.arange(length - t, length)[:, None] >= mx.arange(length)[None]
