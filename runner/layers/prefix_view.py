"""A read-only view of a shared prefix's KV cache for one call. The call's own keys and values are dropped.

It is made for the CPU kernel, which reads the one stored prefix for all rows. mlx-lm's own attention gets copies of it.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache


class PrefixView:
    """Takes the place of a layer's cache for one call. ``base`` holds one row: the prefix."""

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
