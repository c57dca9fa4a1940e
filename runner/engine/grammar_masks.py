"""The masks of one decode step: which ids each row under a grammar may draw. Knows guides by their contract alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...kernels.sampling.grammar_mask import WORD, Allowed
from ..core.guide import Guide


def step_masks(guides: Sequence[tuple[int, Guide]], width: int) -> Allowed | None:
    """Asks each guide which of ``width`` ids may come next; ``guides``: rows of the batch, ascending, with their guides.

    Rows that may draw any id have no mask, nor have those whose guide fails: they end with this step. None where no row has one.
    """
    bits, rows = np.zeros((len(guides), -(-width // WORD)), np.int32), list[int]()
    for row, guide in guides:
        if guide.fill(bits[len(rows)]) and guide.error is None:
            rows.append(row)
    return Allowed(np.array(rows, np.int32), bits[: len(rows)]) if rows else None


def must_end(allowed: Allowed | None, row: int, ends: NDArray[np.int32]) -> bool:
    """Returns whether ``row`` of the batch may draw nothing but ``ends``, the ids that end it."""
    if allowed is None or not len(at := np.flatnonzero(allowed.rows == row)):
        return False
    bits, stops = allowed.bits[at[0]].view(np.uint32), np.unique(ends)
    return int(np.bitwise_count(bits).sum()) == int((bits[stops // WORD] >> (stops % WORD).astype(np.uint32) & 1).sum())
