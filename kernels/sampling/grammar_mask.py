"""A grammar's mask: the ids that some rows of a batch may draw, one bit an id. Knows no grammars.

    word 0                              word 1
    bit 0 1 2 … 31                      bit 0 1 … V - 33, then bits that mean nothing
    id  0 1 2 … 31                      id 32 33 … V - 1

``reference`` in plain mx ops is the specification; ``on_cpu`` does the same in NumPy. The C++ library reads the bits themselves
(csrc/grammar_mask.h) and needs no copy of the logits.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..logprobs import MaskedRows

WORD = 32


@dataclass(slots=True, frozen=True)
class Allowed:
    """The ids that K of a batch's B rows may draw; the other rows may draw all.

    rows: [K] indices of these rows, ascending, each once. bits: [K, ceil(V / 32)] in little-endian words, as llguidance writes them:
    bit v % 32 of word v // 32 says that id v may be drawn.
    """

    rows: NDArray[np.int32]
    bits: NDArray[np.int32]

    def check(self, b: int, v: int) -> None:
        """Raises ValueError where it does not fit logits [b, v]: the library would read past the end."""
        words = -(-v // WORD)
        if self.bits.shape != (len(self.rows), words) or self.bits.dtype != np.int32:
            found = f"{self.bits.dtype} {list(self.bits.shape)}"
            raise ValueError(f"grammar mask: found bits {found}; expected int32 [{len(self.rows)}, {words}] for {v} ids")
        if len(self.rows) and (self.rows[0] < 0 or self.rows[-1] >= b or (np.diff(self.rows) <= 0).any()):
            raise ValueError(f"grammar mask: found rows {self.rows.tolist()}; expected ascending indices below {b}, each once")


def reference(x: mx.array, allowed: Allowed) -> mx.array:
    """Sets what may not be drawn in x [B, V] to -inf, the specification. Rows without a mask stay as they are, to the bit."""
    b, v = x.shape
    if not len(allowed.rows):
        return x
    shifts = mx.arange(WORD, dtype=mx.int32)
    bits = (mx.array(allowed.bits)[:, :, None] >> shifts) & 1  # (K, words, 32)
    open_ids = bits.reshape(len(allowed.rows), -1)[:, :v] != 0
    if len(allowed.rows) == b:
        return mx.where(open_ids, x, -mx.inf)
    rows, x = mx.array(allowed.rows), mx.array(x)  # a copy, whose rows are set in place
    x[rows] = mx.where(open_ids, x[rows], -mx.inf)
    return x


def on_cpu(x: NDArray[np.float32], allowed: Allowed) -> NDArray[np.float32]:
    """Computes ``reference`` in NumPy, in place."""
    octets = allowed.bits.astype("<i4", copy=False).view(np.uint8)
    for row, own in zip(allowed.rows, octets, strict=True):
        x[row, np.unpackbits(own, count=x.shape[1], bitorder="little") == 0] = -np.inf
    return x


def masked_rows(allowed: Allowed, b: int) -> MaskedRows:
    """Returns the masks of b rows as the library reads them: each row's place in the table, -1 without a mask, and the table."""
    places = np.full(b, -1, np.int32)
    places[allowed.rows] = np.arange(len(allowed.rows), dtype=np.int32)
    return places, np.ascontiguousarray(allowed.bits)


def must_end(allowed: Allowed | None, row: int, ends: NDArray[np.int32]) -> bool:
    """Returns whether ``row`` of the batch may draw nothing but ``ends``, the ids that end it."""
    if allowed is None or not len(at := np.flatnonzero(allowed.rows == row)):
        return False
    bits, stops = allowed.bits[at[0]].view(np.uint32), np.unique(ends)
    return int(np.bitwise_count(bits).sum()) == int((bits[stops // WORD] >> (stops % WORD).astype(np.uint32) & 1).sum())
