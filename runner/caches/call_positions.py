"""The positions of one call's tokens, and the cosines and sines by which rotary embeddings turn them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(slots=True)
class CallPositions:
    """starts [B]: the position of each row's first token, int64. sections [3, B, T]: positions in time, height and width.

    Without ``sections`` each row goes on from its start, one by one, and all three are equal. Columns of pads hold any position.
    even [B]: which rows do so although there are sections, as they hold no picture in this call.
    """

    starts: NDArray[np.int64]
    sections: NDArray[np.int32] | None = None
    even: NDArray[np.bool_] | None = None
    _angles: dict[str, tuple[mx.array, mx.array]] = field(default_factory=dict[str, tuple[mx.array, mx.array]])
    _tables: dict[str, tuple[Floats, Floats]] = field(default_factory=dict[str, tuple[Floats, Floats]])
    _offset: int | mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Returns the starts as mlx's rotary embeddings take them: one number, or [B]."""
        if self._offset is None:
            one = int(self.starts[0])
            self._offset = one if (self.starts == one).all() else mx.array(self.starts.astype(np.int32))
        return self._offset

    def angles(self, turn: Callable[[mx.array, mx.array], mx.array], kind: str, axes: NDArray[np.intp]) -> tuple[mx.array, mx.array]:
        """Returns cosines and sines [B, T, R / 2]: pair i of a head turns as far as ``turn`` turns it at the position on its axis.

        turn: what the plain embeddings make of x [N, 1, 1, R], float32, at the positions [N], in pairs (i, i + R / 2). So a token without
        a picture turns by the bits that it turns by elsewhere. kind: tells embeddings apart; each is asked once a call. axes [R / 2]: 0
        time, 1 height, 2 width.
        """
        if kind not in self._angles:
            assert self.sections is not None, "a call without pictures"
            half = len(axes)
            positions, places = np.unique(self.sections, return_inverse=True)
            ones = mx.concatenate([mx.ones((len(positions), 1, 1, half)), mx.zeros((len(positions), 1, 1, half))], axis=-1)
            made = turn(ones, mx.array(cast(Any, positions.astype(np.int32))))[:, 0, 0]
            rows = mx.array(cast(Any, places.reshape(self.sections.shape)[axes].transpose(1, 2, 0).astype(np.int32)))
            numbers = mx.arange(half)
            self._angles[kind] = made[rows, numbers], made[rows, numbers + half]
        return self._angles[kind]

    def tables(self, turn: Callable[[mx.array, mx.array], mx.array], kind: str, axes: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Returns the same, computed, for the CPU's kernel."""
        if kind not in self._tables:
            cosines, sines = self.angles(turn, kind, axes)
            self._tables[kind] = np.array(cosines), np.array(sines)
        return self._tables[kind]
