"""Decides when waiting rows join the batch that decodes, how many of them, and when rows that have ended leave it.

The engine follows these rules, and the forecast of its work those of joining: for it a row that has ended leaves at once.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .limits import Limits, Load

JOIN_SHARE = 8  # mlx-lm's caches are copied by a join, so a batch is joined only when one slot in so many is free


def may_join(limits: Limits, rows: int, joins: bool) -> bool:
    """Returns True when new rows may enter a batch of ``rows`` now: it is empty, or can be joined and has an eighth of its slots free."""
    return not rows or (joins and limits.rows - rows >= max(1, limits.rows // JOIN_SHARE))


def joining_rows(limits: Limits, load: Load, reaches: Iterable[int]) -> int:
    """Returns how many rows enter beside ``load``, where ``reaches`` are the lengths that waiting rows can become."""
    longest = max(load.longest, *reaches)
    return max(0, limits.most_rows(longest) - load.rows)


def may_leave(leaving: NDArray[np.bool_], static: bool, lazily: bool) -> bool:
    """Returns True when the rows of a batch that ``leaving`` [B] marks may leave it now.

    Those of a ``static`` batch leave together. ``lazily``: not before they are an eighth of it, as caches are copied when rows leave.
    """
    return bool(leaving.all() or (not static and leaving.sum() >= (len(leaving) // JOIN_SHARE if lazily else 1)))
