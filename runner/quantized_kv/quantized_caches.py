"""KV caches that hold keys and values in few bits, with the interface of mlx-lm's caches.

``PlainQuantizedKVCache`` holds rows of one length, as mlx-lm's KVCache does. ``BatchQuantizedKVCache`` holds rows of unlike lengths, with
pads in front, as its BatchKVCache does: rows join, leave and fork. A call's own tokens are attended to as they are kept. So a row's
results do not depend on the calls in which it is fed, nor on its batch mates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import create_attention_mask, dynamic_roll
from numpy.typing import NDArray

from ..core.kv_quantization import KVQuantization
from .packed_kv import PackedKV, pack

Counts = NDArray[np.int64]  # [B]


class _PackedRows:
    """Rows of packed keys and values. ``keys``, ``values``: the parts of each, [B, K, room, ·]; ``early_…``: see packed_kv.py."""

    step = 256  # tokens: the room grows in such steps

    def __init__(self, kv: KVQuantization):
        self.bits, self.group_size, self.start = kv.bits, kv.group, kv.start
        self.keys: list[mx.array] | None = None
        self.values: list[mx.array] | None = None
        self.early_keys: mx.array | None = None
        self.early_values: mx.array | None = None

    @property
    def kv(self) -> KVQuantization:
        """Returns how the cache quantizes."""
        return KVQuantization(self.bits, self.group_size, self.start)

    @property
    def state(self) -> tuple[Any, ...]:
        """Returns the arrays, to be computed."""
        return self.keys, self.values, self.early_keys, self.early_values

    @property
    def nbytes(self) -> int:
        """Counts the bytes of all rows, with the room for tokens to come."""
        return sum(x.nbytes for x in (*(self.keys or ()), *(self.values or ()), self.early_keys, self.early_values) if x is not None)

    def empty(self) -> bool:
        """Returns True when no row holds anything."""
        return self.keys is None

    def _append(self, keys: mx.array, values: mx.array, at: int, pads: Counts) -> None:
        """Writes a call's keys and values [B, K, T, D] to the columns from ``at`` on. pads [B]: columns before each row."""
        self.keys = self._written(self.keys, pack(keys, self.kv), at)
        self.values = self._written(self.values, pack(values, self.kv), at)
        if (at - pads < self.start).any():
            self.early_keys = self._with_early(self.early_keys, keys, at - pads)
            self.early_values = self._with_early(self.early_values, values, at - pads)

    def _written(self, held: list[mx.array] | None, coming: list[mx.array], at: int) -> list[mx.array]:
        end = at + coming[0].shape[2]
        if held is None or end > held[0].shape[2]:
            room = -(-(end - at) // self.step) * self.step
            new = [mx.zeros((*x.shape[:2], room, x.shape[3]), x.dtype) for x in coming]
            held = new if held is None else [mx.concatenate([x[..., :at, :], more], axis=2) for x, more in zip(held, new, strict=True)]
        for x, own in zip(held, coming, strict=True):
            x[..., at:end, :] = own
        return held

    def _with_early(self, held: mx.array | None, coming: mx.array, first: Counts) -> mx.array:
        """Returns the early tokens with those of a call [B, K, T, D] in place. first [B]: which token of its row is in the first column."""
        b, k, t, d = coming.shape
        held = mx.zeros((b, k, self.start, d), coming.dtype) if held is None else held
        column = np.arange(self.start) - first[:, None]
        at = mx.array(np.clip(column, 0, t - 1).astype(np.int32))[:, None, :, None]
        inside: Any = (column >= 0) & (column < t)
        here = mx.array(inside)[:, None, :, None]
        return mx.where(here, mx.take_along_axis(coming, at, axis=2), held)

    def _fetched(self, end: int, pads: mx.array) -> tuple[PackedKV, PackedKV]:
        assert self.keys is not None
        assert self.values is not None
        keys, values = ([x[..., :end, :] for x in parts] for parts in (self.keys, self.values))
        return PackedKV(keys, self.early_keys, pads, self.kv), PackedKV(values, self.early_values, pads, self.kv)


class PlainQuantizedKVCache(_PackedRows):
    """Rows of one length, ``offset``. Its attributes are arrays whose first axis is the rows, and numbers."""

    def __init__(self, kv: KVQuantization):
        super().__init__(kv)
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Adds keys and values [B, K, T, D]; returns all that the rows hold."""
        self._append(keys, values, self.offset, np.zeros(len(keys), np.int64))
        self.offset += keys.shape[2]
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        """Returns all that the rows hold."""
        assert self.keys is not None
        return self._fetched(self.offset, mx.zeros(len(self.keys[0]), mx.int32))

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array | str | None:
        """Returns the mask that mlx-lm's KVCache makes."""
        return create_attention_mask(n, offset=self.offset, return_array=return_array, window_size=window_size)

    @classmethod
    def merge(cls, caches: "Sequence[PlainQuantizedKVCache]") -> "BatchQuantizedKVCache":
        """Makes a batch from copies of caches of one row each, of any lengths."""
        rows = [BatchQuantizedKVCache.of(cache) for cache in caches]
        for other in rows[1:]:
            rows[0].extend(other)
        return rows[0]


class BatchQuantizedKVCache(_PackedRows):
    """Rows of unlike lengths, with ``left_padding`` [B] columns of pads before each, up to one common column."""

    def __init__(self, kv: KVQuantization, rows: int):
        super().__init__(kv)
        self.left_padding: Counts = np.zeros(rows, np.int64)
        self._end = 0  # columns written
        self._behind: Counts | None = None  # pads that follow each row's tokens, until ``finalize``

    @classmethod
    def of(cls, row: PlainQuantizedKVCache) -> "BatchQuantizedKVCache":
        """Makes a batch of a copy of one row."""
        made = cls(row.kv, 1)
        made.keys, made.values = (None if parts is None else [x[..., : row.offset, :] for x in parts] for parts in (row.keys, row.values))
        made.early_keys, made.early_values = (None if x is None else mx.array(x) for x in (row.early_keys, row.early_values))
        made._end = row.offset
        return made

    @property
    def offset(self) -> mx.array:
        """Returns the next position of each row [B]."""
        return mx.array((self._end - self.left_padding).astype(np.int32))

    def size(self) -> int:
        """Returns the columns that are written."""
        return self._end

    def make_mask(self, n: int, return_array: bool = False, window_size: int | None = None) -> mx.array | str | None:
        """Returns which columns the next ``n`` positions see: bool [B, 1, n, L]. Without pads the mask of mlx-lm's KVCache serves."""
        if not self.left_padding.any():
            return create_attention_mask(n, offset=self._end, return_array=return_array, window_size=window_size)
        return create_causal_mask(n, offset=self._end, window_size=window_size, left_padding=self._pads())

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Adds keys and values [B, K, T, D]; returns all that the rows hold."""
        self._append(keys, values, self._end, self.left_padding)
        self._end += keys.shape[2]
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        """Returns all that the rows hold."""
        return self._fetched(self._end, self._pads())

    def prepare(self, *, lengths: list[int], right_padding: list[int]) -> None:
        """Starts calls whose rows hold ``lengths`` tokens, followed by pads."""
        self._behind = np.array(right_padding, np.int64)

    def finalize(self) -> None:
        """Moves the pads written since ``prepare`` to the left."""
        if self._behind is None:
            return
        by = mx.array(self._behind.astype(np.int32))[:, None]
        self._change(lambda x: dynamic_roll(x, by, axis=2))
        self.left_padding = self.left_padding + self._behind
        self._behind = None

    def filter(self, batch_indices: mx.array) -> None:
        """Keeps the rows named, in that order, and drops the columns that are pads in all of them."""
        self.left_padding = self.left_padding[np.array(batch_indices)]
        spare = int(self.left_padding.min())
        self._change(lambda x: x[batch_indices, :, spare:])
        self.early_keys, self.early_values = (None if x is None else x[batch_indices] for x in (self.early_keys, self.early_values))
        self.left_padding, self._end = self.left_padding - spare, self._end - spare

    def extend(self, other: "BatchQuantizedKVCache") -> None:
        """Appends the rows of another cache."""
        filled, end = (other if self.keys is None else self), max(self._end, other._end)
        pads = [end - cache._end + cache.left_padding for cache in (self, other)]
        if filled.keys is not None and filled.values is not None:
            room = max(cache.keys[0].shape[2] for cache in (self, other) if cache.keys is not None)
            keys = [cache._placed(cache.keys, filled.keys, end, room) for cache in (self, other)]
            values = [cache._placed(cache.values, filled.values, end, room) for cache in (self, other)]
            self.keys, self.values = ([mx.concatenate(list(pair)) for pair in zip(*both, strict=True)] for both in (keys, values))
            self.early_keys = self._with_early_rows(other, self.early_keys, other.early_keys)
            self.early_values = self._with_early_rows(other, self.early_values, other.early_values)
        self.left_padding, self._end = np.concatenate(pads), end

    def _placed(self, parts: list[mx.array] | None, like: list[mx.array], end: int, room: int) -> list[mx.array]:
        """Returns parts whose written columns are the last before ``end``; zeros where the cache holds nothing."""
        if parts is None:
            return [mx.zeros((len(self.left_padding), x.shape[1], room, x.shape[3]), x.dtype) for x in like]
        around = [(0, 0), (0, 0), (end - self._end, room - end), (0, 0)]
        return [mx.pad(x[..., : self._end, :], around) for x in parts]

    def _with_early_rows(self, other: "BatchQuantizedKVCache", mine: mx.array | None, theirs: mx.array | None) -> mx.array | None:
        like = theirs if mine is None else mine
        if like is None:
            return None
        pairs = ((self, mine), (other, theirs))
        return mx.concatenate([mx.zeros((len(cache.left_padding), *like.shape[1:]), like.dtype) if x is None else x for cache, x in pairs])

    def _change(self, change: Callable[[mx.array], mx.array]) -> None:
        """Replaces each part by ``change`` of it."""
        self.keys, self.values = (None if parts is None else [change(x) for x in parts] for parts in (self.keys, self.values))

    def _pads(self) -> mx.array:
        return mx.array(self.left_padding.astype(np.int32))
