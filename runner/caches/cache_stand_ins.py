"""What takes the place of a layer's cache for one call: a view of a shared prefix, and masks of attention both ways.

mlx-lm's model files ask a cache for its mask, so no file is copied.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache


class PrefixView:
    """A shared prefix's KV cache for one call, read only: the call's own keys and values are dropped.

    It is made for the CPU kernel, which reads the one stored prefix for all rows. mlx-lm's own attention gets copies of it. ``base``
    holds one row: the prefix.
    """

    def __init__(self, base: KVCache):
        self.base = base

    @property
    def offset(self) -> int:
        """Returns the next position of each row."""
        return self.base.offset

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the mask that ``KVCache`` makes."""
        return self.base.make_mask(*args, **kwargs)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Returns keys and values [B, K, T, D] after a copy of the base's L positions for each row: [B, K, L + T, D]."""
        return self._appended(self.base.keys, keys), self._appended(self.base.values, values)

    def _appended(self, held: mx.array | None, coming: mx.array) -> mx.array:
        assert held is not None, "a base that holds nothing"
        ahead = held[:, :, : self.offset]
        return mx.concatenate([mx.broadcast_to(ahead, (coming.shape[0], *ahead.shape[1:])), coming], axis=2)


class BothWays:
    """Attention both ways: a cache that keeps nothing, and masks by which a token sees what is behind it too.

    Rows are padded on the right. Each token sees all of its row, or those within the window. A pad sees its row and itself, so that no
    sum is over nothing:

        a b c d
        e f . .

    window: the first distance at which a token is not seen, for layers with a window.
    """

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
