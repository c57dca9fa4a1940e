"""A call on top of what all its rows begin with, which stands in memory once and stays as it is. Nothing is kept of the call.

It is made for the CPU's kernel, which reads the one copy for all rows. What calls it as mlx-lm's own caches are called gets copies.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache


class PrefixView:
    """In a layer's cache's place for one call: ``base`` holds one row."""

    def __init__(self, base: KVCache):
        self.base = base

    @property
    def offset(self) -> int:
        """The next position of each row."""
        return self.base.offset

    def make_mask(self, *args: Any, **kwargs: Any) -> Any:
        """As ``KVCache``'s."""
        return self.base.make_mask(*args, **kwargs)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """[B, K, T, D] behind a copy of the base's positions for each row, [B, K, L + T, D]."""
        return self._behind(self.base.keys, keys), self._behind(self.base.values, values)

    def _behind(self, held: mx.array | None, coming: mx.array) -> mx.array:
        assert held is not None, "a base that holds nothing"
        ahead = held[:, :, : self.offset]
        return mx.concatenate([mx.broadcast_to(ahead, (coming.shape[0], *ahead.shape[1:])), coming], axis=2)
