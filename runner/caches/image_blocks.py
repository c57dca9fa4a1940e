"""What stands in for a layer's cache where a picture's tokens see each other both ways, in a call that holds whole pictures (Gemma 3).

A token sees what the cache's own mask shows it, and what comes after it in its picture. A window bounds only what lies before:

          a P P b      P: a picture
    a     x . . .
    P     x x x .
    P     x x x .
    b     x x x x
"""

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..core.images import ImagePart, continues

MARK = "_attends_in_blocks"  # on a network whose pictures see themselves both ways: not among a module's parameters


class ImageBlocks:
    """``cache`` in a call; ahead [B, 1, T, T]: which of the call's later tokens each sees."""

    def __init__(self, cache: Any, ahead: mx.array):
        self._cache, self._ahead = cache, ahead

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array | None:
        """Returns which columns the call's n tokens see: bool [B, 1, n, L]; the last n are their own."""
        mask: mx.array | None = self._cache.make_mask(n, return_array=True, window_size=window_size)
        if mask is None:  # one token, which sees all
            return None
        return mask | mx.pad(self._ahead, [(0, 0), (0, 0), (0, 0), (mask.shape[-1] - n, 0)])

    def __getattr__(self, name: str) -> Any:
        """All else is the cache's own."""
        if name.startswith("__"):  # a copy asks before it has a cache
            raise AttributeError(name)
        return getattr(self._cache, name)


def seen_ahead(parts: list[ImagePart], shape: tuple[int, int]) -> mx.array:
    """Returns which later tokens of a call each token sees, [B, 1, T, T]: those of its picture. parts: its pictures; shape: (B, T)."""
    offsets = np.full(shape, -1)
    for part in parts:
        offsets.ravel()[part.indices] = part.offsets
    before = np.pad(offsets, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    begins = (offsets >= 0) & (offsets != before + 1) | (offsets == 0)
    numbers = mx.array(np.where(offsets >= 0, np.cumsum(begins, axis=1), 0).astype(np.int32))  # which picture of its row
    same = (numbers[:, None, :, None] == numbers[:, None, None]) & (numbers > 0)[:, None, None]
    at = mx.arange(shape[1])
    return same & (at[:, None] < at)


def require_whole(parts: list[ImagePart], shape: tuple[int, int]) -> None:
    """Raises ValueError where a call holds a picture in part: its tokens would not see those of another call. parts, shape: as above."""
    for part in parts:
        tokens, begins = part.image.tokens, part.indices[part.offsets == 0]
        places = (begins[:, None] + np.arange(tokens)).ravel()
        whole = np.array_equal(part.indices, places) and np.array_equal(part.offsets, np.tile(np.arange(tokens), len(begins)))
        if not whole or (begins % shape[1] + tokens > shape[1]).any():
            raise ValueError(
                f"a call of the model cuts the picture {part.image.digest}: expected all {tokens} tokens of it, which see each other both "
                "ways; this is a fault of mlx-bulk's: report it"
            )


def attend_in_blocks(network: Any) -> None:
    """Has a network's calls let a picture's tokens see each other both ways. Its calls must not cut pictures (see ``uncut``)."""
    object.__setattr__(network, MARK, True)


def attends_in_blocks(network: Any) -> bool:
    """Returns True for such a network."""
    return getattr(network, MARK, False)


def uncut(network: Any, ids: NDArray[np.integer], tokens: int) -> int:
    """Returns how many columns of ``ids`` [B, T] the next call takes: ``tokens``, or more where it would cut a picture that must be whole.

    It never leaves a single token over, which mlx-lm's rotating caches take for a decode step.
    """
    width = ids.shape[1]
    if attends_in_blocks(network):
        while tokens < width and (continues(ids[:, tokens - 1], ids[:, tokens]).any() or tokens == width - 1):
            tokens += 1
    return tokens
