"""mlx-lm's cache of padded rows, which also says what the mask of a decode step means: from which key on each row sees all.

mlx-lm's model files make one mask for all layers and hand it to attention. Who finds it here knows each row's first key.

    . . a b c|d     first 2
    e f g h i|j           0
"""

from collections import deque
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache

KINDS = 4  # masks of one step: whole, and by windows
_made: deque[tuple[mx.array, mx.array]] = deque(maxlen=KINDS)


class PaddedKVCache(BatchKVCache):
    """``BatchKVCache`` that remembers the masks of single tokens: see ``first_keys``."""

    def make_mask(  # pyright: ignore[reportIncompatibleMethodOverride]  (mlx-lm calls it by position, and names it N)
        self, tokens: int, return_array: bool = False, **kwargs: Any
    ) -> mx.array:
        """Returns the mask of the next tokens, as mlx-lm makes it."""
        mask = super().make_mask(tokens, return_array, **kwargs)
        window = kwargs.get("window_size")
        if tokens == 1 and not {name for name, value in kwargs.items() if value is not None} - {"window_size"}:
            first = self.left_padding if window is None else mx.maximum(self.left_padding, self._idx + 1 - window)
            _made.append((mask, first.astype(mx.int32)))
        return mask


def first_keys(mask: Any) -> mx.array | None:
    """Returns each row's first key [B] int32, from which on it sees all, where a cache has made ``mask`` for one token; else None."""
    return next((first for made, first in _made if made is mask), None)


def tell_first_keys(cache: Any) -> None:
    """Makes a ``PaddedKVCache`` of mlx-lm's cache, in place."""
    if type(cache) is BatchKVCache:
        cache.__class__ = PaddedKVCache
