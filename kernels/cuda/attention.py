"""Attention on CUDA where mlx has none of its own: of padded rows that decode, and under masks of shapes that change with each call.

mlx 0.32 takes no mask in its kernel for one query a row, and computes it by products instead, which read all keys and values at a
quarter of the memory's speed. Under an array of a mask, longer calls go to cuDNN, which builds a plan for each new shape: half a second
and more. ``of_padded_rows`` is a kernel for the first case (``csrc/padded_attention.cuh``), ``by_products`` is for the second.

Scores and shares are float32 in both, as in cuDNN's.
"""

import struct
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx

SOURCE = Path(__file__).parents[1] / "csrc" / "padded_attention.cuh"
CALL = """
  attend<T, D, SHARED, HEADS, THREADS>(
      queries, queries_strides, keys, keys_shape, keys_strides, values, values_strides, first,
      __int_as_float(SCALE) * 1.44269504088896341f, out);
"""
HALVES = (mx.float16, mx.bfloat16)
TYPES = (mx.float32, *HALVES)
LANES = 16  # threads that read a key together
THREADS = 128  # of a block
WIDEST = 256  # numbers of a key: more do not fit a thread's registers
FEWEST_BLOCKS, LONGEST = 32, 2048  # fewer blocks than these leave most of a GPU idle, where each has more keys than that to read
FLOAT32_BYTES = 512 << 20  # of scores, keys and values in float32, about as much as the widest arrays of an MLP


@cache
def source_key() -> str:
    """Names all that decides the bits of this attention."""
    return sha256(b"".join(file.read_bytes() for file in (Path(__file__), SOURCE))).hexdigest()[:16]


def suits(q: mx.array, k: mx.array, v: mx.array) -> bool:
    """Returns True when ``of_padded_rows`` serves a call, from shapes and types alone. The last stride of k and v must be 1."""
    if any(x.ndim != 4 or x.dtype != q.dtype for x in (q, k, v)) or q.dtype not in TYPES:
        return False
    (b, h, t, d), (rows, kv, length, _) = q.shape, k.shape
    fits = t == 1 and rows == b and k.shape == v.shape and k.shape[-1] == d and h % kv == 0 and d % LANES == 0 and d <= WIDEST
    return fits and (b * kv >= FEWEST_BLOCKS or length <= LONGEST)


def of_padded_rows(q: mx.array, k: mx.array, v: mx.array, scale: float, first: mx.array) -> mx.array:
    """Returns softmax(scale · q kᵀ) v [B, H, 1, D], unevaluated, in which row b sees its keys from ``first[b]`` on, [B] int32.

    q: [B, H, 1, D]; k and v: [B, K, L, D] with H a multiple of K. Each row sees at least one key.
    """
    (b, h, _, d), kv = q.shape, k.shape[1]
    shared = h // kv
    most = 4 if d <= WIDEST // 2 else 2  # query heads that fit a thread's registers
    heads = next(n for n in range(most, 0, -1) if shared % n == 0)
    numbers = {"D": d, "SHARED": shared, "HEADS": heads, "THREADS": THREADS, "SCALE": _bits(scale)}
    (out,) = _kernel()(
        inputs=[q, k, v, first],
        template=[("T", q.dtype), *numbers.items()],
        grid=(kv * THREADS, b, shared // heads),
        threadgroup=(THREADS, 1, 1),
        output_shapes=[(b, h, 1, d)],
        output_dtypes=[q.dtype],
    )
    return out


def _bits(scale: float) -> int:
    """Returns a float32 as the whole number of the same bits: a kernel's constants are whole."""
    return struct.unpack("<i", struct.pack("<f", scale))[0]


@cache
def _kernel() -> Callable[..., list[mx.array]]:
    kernel: Any = mx.fast.cuda_kernel(
        name="padded_attention",
        input_names=["queries", "keys", "values", "first"],
        output_names=["out"],
        source=CALL,
        header=SOURCE.read_text(),
        ensure_row_contiguous=False,
    )
    return kernel


def suits_products(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> bool:
    """Returns True when ``by_products`` serves a call: one that would go to cuDNN, of few enough scores, keys and values."""
    numbers = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] + k.size + v.size
    return all(x.dtype in HALVES for x in (q, k, v)) and q.dtype == v.dtype and mask.dtype == mx.bool_ and 4 * numbers <= FLOAT32_BYTES


def by_products(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array, sinks: mx.array | None = None) -> mx.array:
    """Returns softmax(scale · q kᵀ) v [B, H, T, E], unevaluated, of the keys that ``mask`` marks; where it marks none, the mean of all.

    q: [B, H, T, D]; k: [B, K, L, D] and v: [B, K, L, E] with H a multiple of K. mask: bool, broadcasts to [B, H, T, L]. sinks [H]: each
    head's score for no key, which has no value.
    """
    (b, h, t, d), (_, kv, length, _) = q.shape, k.shape
    by_group = (b, kv, h // kv, t)
    keys, values = (x.astype(mx.float32)[:, :, None] for x in (k, v))
    scores = q.astype(mx.float32).reshape(*by_group, d) @ keys.swapaxes(-1, -2)
    seen = mx.broadcast_to(mask, (b, h if mask.ndim > 2 and mask.shape[-3] > 1 else 1, t, length))
    seen = seen.reshape(*by_group[:3], t, length) if seen.shape[1] > 1 else seen[:, :, None]
    scores = _masked(scores, mx.array(scale), seen)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.astype(mx.float32).reshape(kv, h // kv, 1, 1), (*by_group, 1))
        scores = mx.concatenate([scores, sink], axis=-1)
    shares = mx.softmax(scores, axis=-1)[..., :length]
    return (shares @ values).reshape(b, h, t, -1).astype(q.dtype)


@partial(mx.compile, shapeless=True)
def _masked(scores: mx.array, scale: mx.array, seen: mx.array) -> mx.array:
    return mx.where(seen, scale * scores, mx.finfo(mx.float32).min)
