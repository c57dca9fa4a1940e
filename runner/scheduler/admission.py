"""Decides when waiting rows join the batch that decodes, and how many of them.

The engine follows these rules, and the forecast of its work does too.
"""

from collections.abc import Iterable

from .limits import Limits, Load

JOIN_SHARE = 8  # mlx-lm's caches are copied by a join, so a batch is joined only when one slot in so many is free


def may_join(limits: Limits, rows: int, joins: bool) -> bool:
    """Returns True when new rows may enter a batch of ``rows`` now: it is empty, or can be joined and has an eighth of its slots free."""
    return not rows or (joins and limits.rows - rows >= max(1, limits.rows // JOIN_SHARE))


def joining_rows(limits: Limits, load: Load, reaches: Iterable[int]) -> int:
    """Returns how many rows enter beside ``load``, where ``reaches`` are the lengths that waiting rows can become."""
    longest = max(load.longest, *reaches)
    return max(0, limits.most_rows(longest) - load.rows)
