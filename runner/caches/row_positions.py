"""Positions of rows with pictures, for models that turn keys by three of them (M-RoPE; Qwen2-VL, Wang et al. 2024).

A text token counts one further in all three. A picture's tokens share one position in time, and count rows and columns from the position
at which the picture begins. What follows goes on behind its longer side:

    ids       a b P P P P P P c d      P: a picture of 2 rows and 3 columns
    time      0 1 2 2 2 2 2 2 5 6
    height    0 1 2 2 2 3 3 3 5 6
    width     0 1 2 3 4 2 3 4 5 6

So a row's next position is not the count of its tokens. It travels with the row's caches, as one more of them: rows fork, join and
leave in it as in the others. All of it is on the host, and a decode step reads nothing from the device.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..core.images import FIRST_IMAGE_ID, ImageTable
from .call_positions import CallPositions


class RowPositions:
    """Where each of B rows goes on: ``nexts``, the next token's position, and ``begun``, that of the last picture's first token.

    ``tokens``: columns taken in. ``marks``: what calls of more than a token of text in each row began with, so that these can be taken
    back. All are plain lists and numbers, which a prefix cache on disk keeps as they are.
    """

    def __init__(self, rows: int):
        self.nexts, self.begun = [0] * rows, [0] * rows
        self.tokens = 0
        self.marks: list[Any] = []  # [tokens before, tokens after, nexts before, begun before]
        self._coming: list[int] | None = None  # each row's tokens until ``finalize``, if pads follow them

    @classmethod
    def merge(cls, caches: Sequence["RowPositions"]) -> "RowPositions":
        """Makes one of the rows of several."""
        made = cls(0)
        for cache in caches:
            made.extend(cache)
        return made

    def take(
        self, ids: NDArray[np.integer] | None, rows: int, t: int, lengths: list[int] | None, images: ImageTable | None = None
    ) -> CallPositions:
        """Takes in a call of ``rows`` x ``t`` columns; returns their positions. One row here stands for all rows of the call.

        ids: [rows, t], with those of ``images``; None where none is a picture's. lengths: tokens of each row from the call's first column
        on, pads follow; None: as prepared, else all are tokens.
        """
        self._widen(rows)
        real = self._real(t, lengths)
        pictures = ids is not None and bool((ids >= FIRST_IMAGE_ID).any())
        if pictures or real != [1] * rows:  # else one token of text in each row, which one step takes back
            self.marks.append([self.tokens, self.tokens + t, list(self.nexts), list(self.begun)])
        self.tokens += t
        starts = np.array(self.nexts, np.int64)
        if ids is None or images is None or not pictures:
            self.nexts = [start + n for start, n in zip(self.nexts, real, strict=True)]
            return CallPositions(starts)
        sections = np.zeros((3, rows, t), np.int32)
        for row, n in enumerate(real):
            self._take_row(row, ids[row, :n], sections[:, row], images)
        return CallPositions(starts, sections, np.array([not (row >= FIRST_IMAGE_ID).any() for row in ids]))

    def _take_row(self, row: int, ids: NDArray[np.integer], sections: NDArray[np.int32], images: ImageTable) -> None:
        """Writes the positions [3, at least n] of a row's next tokens [n]."""
        at, pictures = 0, ids >= FIRST_IMAGE_ID
        while at < len(ids):
            if not pictures[at]:
                ahead = np.flatnonzero(pictures[at:])
                count = int(ahead[0]) if len(ahead) else len(ids) - at
                sections[:, at : at + count] = self.nexts[row] + np.arange(count)
                self.nexts[row] += count
            else:
                image = images.image_of(int(ids[at]))
                offset = int(ids[at]) - image.first
                count = min(image.tokens - offset, len(ids) - at)
                if offset == 0:  # else an earlier call has begun it
                    self.begun[row] = self.nexts[row]
                    self.nexts[row] += max(image.grid[1:])
                sections[:, at : at + count] = self.begun[row] + coordinates(image.grid)[:, offset : offset + count]
            at += count

    def _widen(self, rows: int) -> None:
        if len(self.nexts) == 1 and rows > 1:
            self.repeat(rows)

    def repeat(self, rows: int) -> None:
        """Holds its one row ``rows`` times."""
        self.filter([0] * rows)

    def _real(self, t: int, lengths: list[int] | None) -> list[int]:
        """Returns how many of a call's t columns are tokens of each row; counts those that were prepared."""
        real = [t] * len(self.nexts)
        if self._coming is not None:
            real = [min(n, t) for n in self._coming]
            self._coming = [n - done for n, done in zip(self._coming, real, strict=True)]
        return real if lengths is None else [min(max(n, 0), t) for n in lengths]

    def prepare(self, *, lengths: list[int], right_padding: list[int]) -> None:
        """Starts calls with pads, as mlx-lm's batch caches do."""
        self._coming = list(lengths)

    def finalize(self) -> None:
        """Ends calls with pads."""
        self._coming = None

    def filter(self, batch_indices: mx.array | list[int]) -> None:
        """Keeps the rows named, in that order. A row may be named twice."""
        kept: list[int] = np.array(batch_indices).tolist()
        self.nexts, self.begun = _picked(self.nexts, kept), _picked(self.begun, kept)
        self.marks = [[before, after, _picked(nexts, kept), _picked(begun, kept)] for before, after, nexts, begun in self.marks]

    def extend(self, other: "RowPositions") -> None:
        """Appends the rows of another. What either has taken in so far cannot be taken back then."""
        self.nexts, self.begun, self.marks = [*self.nexts, *other.nexts], [*self.begun, *other.begun], []
        self.tokens = max(self.tokens, other.tokens)

    def trim(self, tokens: int) -> None:
        """Takes back the newest columns. Raises ValueError where these begin within a call of several."""
        left = self.tokens - tokens
        while self.marks and self.marks[-1][0] >= left:
            self.tokens, _, self.nexts, self.begun = self.marks.pop()
        if self.marks and self.marks[-1][1] > left:
            raise ValueError(f"{tokens} tokens cannot be taken back: they begin within a call that ends at token {self.marks[-1][1]}")
        steps = self.tokens - left  # of one token in each row
        self.nexts, self.tokens = [start - steps for start in self.nexts], left

    def empty(self) -> bool:
        """Returns True when no row holds anything."""
        return not self.tokens

    @property
    def state(self) -> tuple[()]:
        """Returns nothing: no array is lazy."""
        return ()

    @property
    def nbytes(self) -> int:
        """Returns 0: a row holds two numbers."""
        return 0


def _picked(values: list[int], kept: list[int]) -> list[int]:
    return [values[row] for row in kept]


def coordinates(grid: tuple[int, int, int]) -> NDArray[np.int64]:
    """Returns time, row and column [3, T] of the tokens of a picture of so many, counted row by row."""
    return np.indices(grid).reshape(3, -1)
