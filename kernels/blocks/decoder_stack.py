"""Decoder blocks one after the other on the CPU in one call, and the norm behind them.

Weights push Python's data out of the processor's cache. One call for each block then cost 0.1 ms more, and each thing that Python does
between two calls takes three times as long as elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import native
from .decoder_block import Block, BlockCall, Rooms, place_call


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """An RMS norm behind the last block; see ``elementwise.reference_rms_norm``. weight: [d]."""

    weight: mx.array
    eps: float
    more: float = 0.0


class Stack:
    """Blocks one after the other in one call, each on caches of its own for the rows of one batch. None is a first half alone.

    ``lengths``, one for each block, [B]: positions that each row holds, prefixes included. A call counts what it writes there, and in
    ``Rooms.used``.
    """

    def __init__(
        self, blocks: Sequence[Block], rooms: Sequence[Rooms], lengths: Sequence[NDArray[np.int64]], norm: FinalNorm | None = None
    ):
        """Raises ValueError for a first half, and Traced."""
        if not all(block.call.hidden for block in blocks):
            raise ValueError("a block without a feed-forward cannot write over its own input")
        self.rooms = tuple(rooms)
        self._kept, self._lengths = tuple(blocks), tuple(lengths)
        self._calls = (BlockCall * len(blocks))(*(block.call for block in blocks))
        for call, own, held in zip(self._calls, rooms, lengths, strict=True):
            place_call(call, own)
            call.starts = call.lengths = held.ctypes.data
        self._norm: tuple[int | None, float, float] = None, 0.0, 0.0
        if norm is not None:
            self._norm_weight = native.view(native.dense(norm.weight))
            self._norm = self._norm_weight.ctypes.data, norm.eps, norm.more

    def __call__(self, x: mx.array) -> mx.array | None:
        """Computes the last block's output [B, T, d] of x, the same shape, and its norm where there is one. All columns are tokens.

        Each token sees its row up to itself. Returns None, with nothing written, where a row has no room for T positions more. Raises
        Traced before anything is written.
        """
        x = native.dense(x)
        out = native.empty(x.shape)
        return None if native.library().blocks(self._calls, len(self._calls), x, out, *self._norm) else out

    @property
    def rows_apart(self) -> bool:
        """True when each thread takes rows of its own through all blocks, in a call like the last one."""
        return bool(native.library().rows_apart(self._calls, len(self._calls)))
