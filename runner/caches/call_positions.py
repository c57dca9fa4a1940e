"""The positions of one call's tokens, and the cosines and sines by which rotary embeddings turn them."""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(slots=True)
class CallPositions:
    """starts [B]: the position of each row's first token, int64. sections [3, B, T]: positions in time, height and width.

    Without ``sections`` each row goes on from its start, one by one, and all three are equal. Columns of pads hold any position.
    """

    starts: NDArray[np.int64]
    sections: NDArray[np.int32] | None = None
    _tables: dict[tuple[float, ...], tuple[Floats, Floats]] = field(default_factory=dict[tuple[float, ...], tuple[Floats, Floats]])
    _offset: int | mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Returns the starts as mlx's rotary embeddings take them: one number, or [B]."""
        if self._offset is None:
            one = int(self.starts[0])
            self._offset = one if (self.starts == one).all() else mx.array(self.starts.astype(np.int32))
        return self._offset

    def angles(self, frequencies: mx.array, axes: NDArray[np.intp], scale: float) -> tuple[Floats, Floats]:
        """Returns cosines and sines [B, T, R / 2]: number i of a head turns by its axis' position times frequencies[i].

        frequencies [R / 2]: radians a position. axes [R / 2]: 0 time, 1 height, 2 width. They are computed once a call.
        """
        assert self.sections is not None, "a call without pictures"
        key = (scale, *axes.tolist(), id(frequencies))
        if key not in self._tables:
            positions = np.ascontiguousarray(self.sections[axes].transpose(1, 2, 0)).astype(np.float32)
            turned = positions * np.float32(scale) * np.array(frequencies)
            self._tables[key] = np.cos(turned), np.sin(turned)
        return self._tables[key]
