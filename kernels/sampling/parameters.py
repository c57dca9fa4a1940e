"""What a step's draw is told of its B rows: temperature, filters, penalties, edits, the grammar's mask, and a uniform number each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .grammar_mask import Allowed
from .logits_processors import Edits
from .xtc import XTC

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(slots=True)
class Parameters:
    """Sampling parameters of B rows, one entry per row; temperature 0 is greedy, top_k 0 is off. ``uniforms``: [B] in [0, 1).

    typical_p, xtc: None where no row uses it.
    """

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    repetition: Floats
    presence: Floats
    frequency: Floats
    uniforms: Floats
    edits: Edits | None = None
    allowed: Allowed | None = None
    typical_p: Floats | None = None
    xtc: XTC | None = None

    @property
    def greedy(self) -> NDArray[np.bool_]:
        """Marks the rows that take the most likely token."""
        return self.temperature == 0

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Marks the rows that leave out unlikely tokens: by top-k, top-p or min-p."""
        return ~self.greedy & ((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0))

    @property
    def filtered(self) -> NDArray[np.bool_]:
        """Marks the rows that have any filter; XTC counts also in a step in which it leaves nothing out."""
        found = self.cut
        if self.typical_p is not None:
            found |= self.typical_p < 1
        if self.xtc is not None:
            found |= self.xtc.on
        return found & ~self.greedy

    @property
    def masked(self) -> NDArray[np.bool_]:
        """Marks the rows that have a grammar's mask."""
        found = np.zeros(len(self.temperature), np.bool_)
        if self.allowed is not None:
            found[self.allowed.rows] = True
        return found
