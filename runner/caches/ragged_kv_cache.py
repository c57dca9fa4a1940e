"""A KV cache whose rows have separate memory: one row leaves, joins, grows or forks, and no other is copied or padded.

    slabs   a b c d .        each row's keys and values, of its own length
            e f .
            g h i j k l .    . is room for the next tokens

Forked rows share one copy of their common beginning, the *front*, and have slabs of their own after it:

    front   a b c d ─┬─ e f .        nobody writes to a front
                     └─ g .

It is made for the CPU kernel, which gets the address of each row. mlx-lm's own attention gets copies.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.blocks.decoder_block import Fronts, Rooms

STEP = 64  # tokens: a row's room grows in such steps
SOON = STEP // 4  # a row with less room than this grows when another one has to: rows of unlike lengths would grow one by one


@dataclass(slots=True)
class Slab:
    """A row's keys and values, float32 [2, K, room, D]. A ``shared`` slab is copied before a write.

    keys, values: the addresses of both halves. Each layer asks for them whenever the batch changes, and NumPy takes long to tell.
    """

    array: NDArray[np.float32]
    shared: bool = False
    keys: int = field(init=False)
    values: int = field(init=False)
    room: int = field(init=False)

    def __post_init__(self) -> None:
        self.keys, self.room = self.array.ctypes.data, self.array.shape[2]
        self.values = self.keys + self.array.nbytes // 2


@dataclass(slots=True, frozen=True)
class Front:
    """The first ``length`` positions of a slab that is never written to again."""

    slab: Slab
    length: int


class RaggedKVCache:
    """Keys and values of a batch in one layer. ``lengths`` [B]: positions that each row holds."""

    def __init__(self, rows: int):
        self.slabs: list[Slab | None] = [None] * rows
        self.fronts: list[Front | None] = [None] * rows
        self.lengths = np.zeros(rows, np.int64)
        self._coming: NDArray[np.int64] | None = None  # each row's tokens until ``finalize``, if pads follow them
        self._rooms: Rooms | None = None

    @classmethod
    def of(cls, rows: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> "RaggedKVCache":
        """Makes a cache of rows from copies of their keys and values, [K, length, D] each."""
        made = cls(len(rows))
        made.lengths = np.array([keys.shape[1] for keys, _ in rows], np.int64)
        for row, (keys, values) in enumerate(rows):
            heads, length, width = keys.shape
            made.slabs[row] = slab = _slab(heads, length, width)
            slab.array[0, :, :length], slab.array[1, :, :length] = keys, values
        return made

    def rooms(self, t: int, heads: int, width: int) -> Rooms:
        """Returns the rows' addresses. Each row has a slab of its own, with room for t positions more of ``heads`` x ``width``."""
        if self._rooms is None or (self._rooms.used + t > self._rooms.sizes).any():
            self._rooms = None  # memory may run out between two rows
            ahead = np.array([0 if front is None else front.length for front in self.fronts], np.int64)
            own = self.lengths - ahead
            rows = list(enumerate(zip(self.slabs, own.tolist(), strict=True)))
            more = t + SOON if any(slab is not None and length + t > slab.room for _, (slab, length) in rows) else t
            for row, (slab, length) in rows:
                if slab is None or slab.shared or length + more > slab.room:
                    self.slabs[row] = _larger(slab, length, more, heads, width)
            keys, values, sizes = _places(self.slabs)
            fronts = Fronts(*_places([None if front is None else front.slab for front in self.fronts]), ahead) if ahead.any() else None
            self._rooms = Rooms(keys, values, sizes, own, fronts)
        return self._rooms

    @property
    def placed(self) -> Rooms | None:
        """The rows' addresses while they stay as they are; None where they are to be looked up."""
        return self._rooms

    @property
    def pads_come(self) -> bool:
        """True within calls with pads."""
        return self._coming is not None

    def real(self, t: int) -> NDArray[np.int64] | None:
        """Returns how many of a call's t columns are tokens of each row; None if all are."""
        return None if self._coming is None else np.minimum(self._coming, t)

    def advance(self, t: int) -> None:
        """Counts the tokens of t columns as written. Pads are not kept."""
        real = self.real(t)
        self.lengths += t if real is None else real
        if self._rooms is not None:
            self._rooms.used += t if real is None else real
        if self._coming is not None and real is not None:
            self._coming -= real

    def prepare(self, *, lengths: list[int], right_padding: list[int]) -> None:
        """Starts calls with pads, as ``Cache`` says."""
        self._coming = np.array(lengths, np.int64)

    def finalize(self) -> None:
        """Ends calls with pads, as ``Cache`` says."""
        self._coming = None

    def filter(self, batch_indices: mx.array) -> None:
        """Keeps the rows named, in that order. A row named twice becomes the front of both copies."""
        kept: list[int] = np.array(batch_indices).tolist()
        for row, count in Counter(kept).items():
            if count > 1:
                self._freeze(row)
        self.slabs, self.fronts = [self.slabs[row] for row in kept], [self.fronts[row] for row in kept]
        self.lengths, self._rooms = self.lengths[kept], None

    def extend(self, other: "RaggedKVCache") -> None:
        """Appends the rows of another cache."""
        self.slabs, self.fronts = [*self.slabs, *other.slabs], [*self.fronts, *other.fronts]
        self.lengths, self._rooms = np.concatenate([self.lengths, other.lengths]), None

    def _freeze(self, row: int) -> None:
        """Turns all that a row holds into a front. A row that has a front already is copied once."""
        slab, front, length = self.slabs[row], self.fronts[row], int(self.lengths[row])
        if slab is None or (front is not None and front.length == length):
            self.slabs[row] = None
            return
        if front is not None:
            joined = _slab(slab.array.shape[1], length, slab.array.shape[3])
            self._copy(row, joined.array)
            slab = joined
        slab.shared = True
        self.slabs[row], self.fronts[row] = None, Front(slab, length)

    def _copy(self, row: int, to: NDArray[np.float32]) -> None:
        """Copies what a row holds into ``to`` [2, K, at least its length, D]."""
        slab, front, length = self.slabs[row], self.fronts[row], int(self.lengths[row])
        ahead = 0
        if front is not None:
            ahead = front.length
            to[:, :, :ahead] = front.slab.array[:, :, :ahead]
        if slab is not None:
            to[:, :, ahead:length] = slab.array[:, :, : length - ahead]

    def empty(self) -> bool:
        """Returns True when no row holds anything."""
        return not self.lengths.any()

    @property
    def state(self) -> tuple[()]:
        """Returns nothing: no array of the cache is lazy."""
        return ()

    @property
    def nbytes(self) -> int:
        """Counts the bytes of all rows; shared ones count for each row."""
        every = [*self.slabs, *(front.slab for front in self.fronts if front is not None)]
        return sum(slab.array.nbytes for slab in every if slab is not None)

    def __deepcopy__(self, memo: Any) -> "RaggedKVCache":
        """Copies the cache. Both share the rows until one of them writes."""
        twin = RaggedKVCache(0)
        for slab in self.slabs:
            if slab is not None:
                slab.shared = True
        twin.slabs, twin.fronts, twin.lengths = list(self.slabs), list(self.fronts), self.lengths.copy()
        twin._coming = None if self._coming is None else self._coming.copy()
        self._rooms = None
        return twin

    # ----------------------------------------------------------------------------------- for mlx-lm's own attention

    @property
    def offset(self) -> mx.array:
        """Returns the next position of each row [B]."""
        return mx.array(self.lengths.astype(np.int32))

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        """Returns which columns of ``update_and_fetch`` the next n positions see: bool [B, 1, n, L]."""
        at = self.offset[:, None, None, None] + mx.arange(n)[None, None, :, None]
        columns = mx.arange(int(self.lengths.max(initial=0)) + n)
        seen = columns <= at
        return seen if window_size is None else seen & (columns > at - window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Adds keys and values [B, K, T, D]; returns copies of all that the rows hold, [B, K, L, D], with zeros after shorter rows."""
        _, heads, t, width = keys.shape
        self.rooms(t, heads, width)
        whole = np.zeros((2, len(self.slabs), heads, int(self.lengths.max(initial=0)) + t, width), np.float32)
        for row, (slab, front, length) in enumerate(zip(self.slabs, self.fronts, self.lengths.tolist(), strict=True)):
            assert slab is not None, "a row without room"
            own = length - (0 if front is None else front.length)
            slab.array[0, :, own : own + t], slab.array[1, :, own : own + t] = np.array(keys[row]), np.array(values[row])
            self._copy(row, whole[:, row])
            whole[:, row, :, length : length + t] = slab.array[:, :, own : own + t]
        self.advance(t)
        return mx.array(whole[0]), mx.array(whole[1])


def _places(slabs: Sequence[Slab | None]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns addresses of keys, of values, and the positions that fit: all 0 where there is no slab."""
    keys, values, rooms = (
        [0 if slab is None else slab.keys for slab in slabs],
        [0 if slab is None else slab.values for slab in slabs],
        [0 if slab is None else slab.room for slab in slabs],
    )
    return np.array(keys, np.int64), np.array(values, np.int64), np.array(rooms, np.int64)


def _slab(heads: int, room: int, width: int) -> Slab:
    return Slab(np.empty((2, heads, -(-room // STEP) * STEP, width), np.float32))


def _larger(slab: Slab | None, length: int, t: int, heads: int, width: int) -> Slab:
    """Returns a slab with room for t positions more, which begins with what the first holds."""
    larger = _slab(heads, length + t, width)
    if slab is not None:
        larger.array[:, :, :length] = slab.array[:, :, :length]
    return larger
