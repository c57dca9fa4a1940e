"""A KV cache whose rows lie apart in memory: one leaves, joins, grows or is forked without the others being copied or padded.

    slabs   a b c d .        each row's keys and values, of its own length
            e f .
            g h i j k l .    . is room for what comes

It is made for the CPU's kernel, which is told where each row stands. What calls it as mlx-lm's own caches are called gets copies.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..kernels.block import Rooms

STEP = 64  # tokens by which a row's room grows


@dataclass(slots=True)
class Slab:
    """A row's keys and values, float32 [2, K, room, D]; who writes to one that is shared copies it before."""

    array: NDArray[np.float32]
    shared: bool = False


class RowCache:
    """Keys and values of a batch for one layer. ``lengths`` [B] are the positions that each row holds."""

    def __init__(self, rows: int):
        self.slabs: list[Slab | None] = [None] * rows
        self.lengths = np.zeros(rows, np.int64)
        self._coming: NDArray[np.int64] | None = None  # tokens of each row in the calls until ``finalize``, where pads stand behind them
        self._rooms: Rooms | None = None

    @classmethod
    def of(cls, rows: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> "RowCache":
        """A cache of rows that hold these keys and values, [K, length, D] each, which are copied."""
        made = cls(len(rows))
        made.lengths = np.array([keys.shape[1] for keys, _ in rows], np.int64)
        for row, (keys, values) in enumerate(rows):
            heads, length, width = keys.shape
            made.slabs[row] = slab = _slab(heads, length, width)
            slab.array[0, :, :length], slab.array[1, :, :length] = keys, values
        return made

    def rooms(self, t: int, heads: int, width: int) -> Rooms:
        """Where the rows stand, each its own and with room for t positions more of ``heads`` x ``width``."""
        if self._rooms is None or (self.lengths + t > self._rooms.sizes).any():
            for row, length in enumerate(self.lengths.tolist()):
                self.slabs[row] = _roomy(self.slabs[row], length, t, heads, width)
            arrays = [slab.array for slab in self.slabs if slab is not None]
            keys = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
            sizes = np.array([array.shape[2] for array in arrays], np.int64)
            self._rooms = Rooms(keys, keys + 4 * heads * sizes * width, sizes, self.lengths)
        return self._rooms

    def real(self, t: int) -> NDArray[np.int64] | None:
        """How many of a call's t columns are tokens of each row, None where all are."""
        return None if self._coming is None else np.minimum(self._coming, t)

    def advance(self, t: int) -> None:
        """Takes in that the tokens of t columns have been written. Pads are not kept."""
        real = self.real(t)
        self.lengths += t if real is None else real
        if self._coming is not None and real is not None:
            self._coming -= real

    def prepare(self, *, lengths: list[int], right_padding: list[int]) -> None:
        """As ``Cache``'s."""
        self._coming = np.array(lengths, np.int64)

    def finalize(self) -> None:
        """As ``Cache``'s."""
        self._coming = None

    def filter(self, batch_indices: mx.array) -> None:
        """As ``Cache``'s; a row that stands twice is shared until one of the two grows."""
        kept: list[int] = np.array(batch_indices).tolist()
        _share(self.slabs[row] for row, count in Counter(kept).items() if count > 1)
        self.slabs, self.lengths, self._rooms = [self.slabs[row] for row in kept], self.lengths[kept], None

    def extend(self, other: "RowCache") -> None:
        """As ``Cache``'s."""
        self.slabs, self.lengths, self._rooms = [*self.slabs, *other.slabs], np.concatenate([self.lengths, other.lengths]), None

    def empty(self) -> bool:
        """Whether no row holds anything."""
        return not self.lengths.any()

    @property
    def state(self) -> tuple[()]:
        """Nothing is under way that had to be computed."""
        return ()

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, a shared one counted each time."""
        return sum(slab.array.nbytes for slab in self.slabs if slab is not None)

    def __deepcopy__(self, memo: Any) -> "RowCache":
        """Shares the rows until one of the two writes to them."""
        twin = RowCache(0)
        _share(self.slabs)
        twin.slabs, twin.lengths = list(self.slabs), self.lengths.copy()
        twin._coming = None if self._coming is None else self._coming.copy()
        self._rooms = None
        return twin

    # ----------------------------------------------------------------------------- as mlx-lm's attention calls a cache

    @property
    def offset(self) -> mx.array:
        """The next position of each row [B]."""
        return mx.array(self.lengths.astype(np.int32))

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """Which of the columns of ``update_and_fetch`` n positions more may see: bool [B, 1, n, L]."""
        at = self.offset[:, None, None, None] + mx.arange(n)[None, None, :, None]
        columns = mx.arange(int(self.lengths.max(initial=0)) + n)
        seen = columns <= at
        return seen if window_size is None else seen & (columns > at - window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Takes in [B, K, T, D]; copies of all that the rows hold, [B, K, L, D], zeros behind what they hold."""
        _, heads, t, width = keys.shape
        self.rooms(t, heads, width)
        found = np.zeros((2, len(self.slabs), heads, int(self.lengths.max(initial=0)) + t, width), np.float32)
        for row, (slab, length) in enumerate(zip(self.slabs, self.lengths.tolist(), strict=True)):
            assert slab is not None, "a row without room"
            slab.array[0, :, length : length + t], slab.array[1, :, length : length + t] = np.array(keys[row]), np.array(values[row])
            found[:, row, :, : length + t] = slab.array[:, :, : length + t]
        self.advance(t)
        return mx.array(found[0]), mx.array(found[1])


def _share(slabs: Iterable[Slab | None]) -> None:
    for slab in slabs:
        if slab is not None:
            slab.shared = True


def _slab(heads: int, room: int, width: int) -> Slab:
    return Slab(np.empty((2, heads, -(-room // STEP) * STEP, width), np.float32))


def _roomy(slab: Slab | None, length: int, t: int, heads: int, width: int) -> Slab:
    """The slab, or a copy that is nobody else's and has room for t more."""
    if slab is not None and not slab.shared and length + t <= slab.array.shape[2]:
        return slab
    larger = _slab(heads, length + t, width)
    if slab is not None:
        larger.array[:, :, :length] = slab.array[:, :, :length]
    return larger
