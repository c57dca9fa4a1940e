"""Attention both ways in mlx-lm's networks: a stand-in for a layer's cache makes the masks. No model file is copied.

Rows are padded on the right. Each token sees all of its row, or those within the window. A pad sees its row and itself, so that no sum
is over nothing:

    a b c d
    e f . .
"""

import mlx.core as mx


class BothWays:
    """Stands for a cache that keeps nothing. window: the first distance at which a token is not seen, for layers with a window."""

    offset = 0

    def __init__(self, lengths: list[int], window: int | None):
        self._lengths, self._window = lengths, window

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Returns this call's keys and values."""
        return keys, values

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        """Returns who sees whom [B, 1, n, n] among ``n`` columns; None where all see all. window_size: None for a layer without one."""
        window = n if window_size is None or self._window is None else self._window
        if window >= n and min(self._lengths) == n and not return_array:
            return None
        at = mx.arange(n)
        seen = (at[None] < mx.array(self._lengths)[:, None])[:, None, None]  # [B, 1, 1, n]
        if window < n:
            seen = seen & (mx.abs(at[:, None] - at[None]) < window)
        return mx.broadcast_to(seen | (at[:, None] == at[None]), (len(self._lengths), 1, n, n))
