"""Attention that sees both ways: a token sees all tokens of its row, or those of a window around it. Knows no weights.

Rows are padded on the right. No token sees a pad, and a pad always sees something, so that its state is finite:

    3 tokens, 2 pads   x x x - -        with a window of 1   x x . - -
                       x x x - -                             x x x - -
                       x x x - -                             . x x - -
                       x x x - -                             . . x x -     a pad sees itself
                       x x x - -                             . . . - x
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from mlx import nn


@dataclass(slots=True)
class AttentionMask:
    """What each token of a batch sees. lengths [B]: each row's tokens; columns: T of the batch, pads included.

    bias [1, H, T, T]: added to the scaled scores of all blocks; None where there is none.
    """

    lengths: list[int]
    columns: int
    bias: mx.array | None = None
    _arrays: dict[int | None, mx.array | None] = field(default_factory=dict[int | None, mx.array | None], init=False)

    def array(self, window: int | None = None) -> mx.array | None:
        """Returns the mask for mx: bool, true where a key is seen, or the bias with -inf elsewhere; None where all is seen.

        [B, 1, 1, T], with a window [B, 1, T, T] and with a bias [B, H, T, T]. ``window``: a token sees keys at most so far away.
        """
        if window is not None and window >= self.columns - 1:
            window = None
        if window not in self._arrays:
            self._arrays[window] = self._made(window)
        return self._arrays[window]

    def _made(self, window: int | None) -> mx.array | None:
        if window is None and self.bias is None and min(self.lengths) >= self.columns:
            return None
        at = mx.arange(self.columns)
        real = at[None] < mx.array(np.maximum(self.lengths, 1))[:, None]  # an empty row sees its first pad
        seen = real[:, None, None, :]
        if window is not None:
            away = mx.abs(at[:, None] - at[None])
            seen = (seen & (away <= window)) | (away == 0)
        return seen if self.bias is None else mx.where(seen, self.bias, -mx.inf)


class RotaryPositions(nn.Module):
    """Rotates queries and keys by angles that grow with the position (Su et al. 2021).

    Its periods are rounded as transformers rounds them. ``nn.RoPE`` computes them otherwise, which at position 8,000 turns a head's
    numbers by 1e-3.
    """

    def __init__(self, dims: int, base: float):
        super().__init__()
        self._periods = mx.array((base ** (np.arange(0, dims, 2) / dims)).astype(np.float32))  # positions per radian

    @property
    def frequencies(self) -> mx.array:
        """Radians per position, [D / 2] float32."""
        return mx.reciprocal(self._periods)

    def __call__(self, x: mx.array) -> mx.array:
        """x [B, H, T, D] -> the same shape."""
        return mx.fast.rope(x, x.shape[-1], traditional=False, base=None, scale=1.0, offset=0, freqs=self._periods)


Taken = Callable[[mx.array, mx.array, mx.array, float, mx.array | None], mx.array]  # of queries, keys, values [B, H, T, D], scale and mask


def by_mlx(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None) -> mx.array:
    """Returns attention as mlx computes it, [B, H, T, D]."""
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def attend(
    qkv: mx.array, heads: int, mask: AttentionMask, window: int | None = None, rope: RotaryPositions | None = None, taken: Taken = by_mlx
) -> mx.array:
    """Returns what each token takes from those that it sees: [B, T, H D].

    qkv [B, T, 3 H D]: queries, keys and values. Scores are scaled by 1/√D. taken: computes the attention.
    """
    b, t, _ = qkv.shape
    q, k, v = qkv.reshape(b, t, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    if rope is not None:
        q, k = rope(q), rope(k)
    found = taken(q, k, v, q.shape[-1] ** -0.5, mask.array(window))
    return found.transpose(0, 2, 1, 3).reshape(b, t, -1)
