"""What a mean and its standard errors need, added up document by document, so that no document stays in memory.

A spread is the difference of large sums. The sums are exact (``exact_sums.py``), so nothing is lost in it.
"""

import math

import numpy as np

from ...runner.core.arrays import Doubles, Ints
from .exact_sums import SCALE, ExactSums, exact_products


class MeanSums:
    """What the mean of values and its standard errors need, for each group. Documents are clusters of values.

    A value is one scored token's logprob, KL divergence or the like.
    """

    def __init__(self) -> None:
        self._sums, self._squares, self._crosses = ExactSums(), ExactSums(), ExactSums()  # Σ s, Σ s², Σ s n over documents
        self._values, self._powers = ExactSums(), ExactSums()  # Σ x, Σ x² over values
        self._has_values = False
        self._sizes, self._size_squares, self._documents = ExactSums(), ExactSums(), ExactSums()  # Σ n, Σ n², and how many

    def add(self, groups: Ints, sums: Doubles, counts: Ints, values: Doubles | None = None) -> None:
        """Adds D documents of ``groups`` [D]: the sum of each one's values, and how many it has. Documents without values do not count.

        values: [Σ counts], each document's one after the other; without them there is no token-wise error.
        """
        if values is not None:
            self._has_values = True
            owners = np.repeat(groups, counts)
            self._values.add(owners, values)
            _add_products(self._powers, owners, values, values)
        there = counts > 0
        groups, sums, sizes = groups[there], sums[there], counts[there].astype(np.float64)
        self._sums.add(groups, sums)
        _add_products(self._squares, groups, sums, sums)
        _add_products(self._crosses, groups, sums, sizes)
        self._sizes.add(groups, sizes)
        self._size_squares.add(groups, sizes * sizes)
        self._documents.add(groups, np.ones(len(groups)))

    def total(self, group: int | None) -> float:
        """Returns the sum of all values."""
        return self._sums.total(group)

    def clustered_error(self, group: int | None) -> float | None:
        """Returns the standard error of the mean, clustered by document, as ``standard_errors.clustered_error`` has it.

        None for fewer than two documents with values, and where a sum is infinite.
        """
        documents, size = (round(sums.total(group)) for sums in (self._documents, self._sizes))
        if documents < 2 or not self._sums.finite(group):
            return None
        one = 1 << SCALE
        total, crosses, squares = (sums.units(group) for sums in (self._sums, self._crosses, self._squares))
        # N² Σ (s − m n)² with m = Σ s / N, without a rounding
        spread = squares * size * size * one - 2 * total * crosses * size + total * total * (self._size_squares.units(group) // one)
        return math.sqrt(documents / (documents - 1) * (max(spread, 0) / (size * size * one * one))) / size

    def tokenwise_error(self, group: int | None) -> float | None:
        """Returns the standard error of the mean as if all N values were independent: ``sqrt(Σ (x − m)² / (N − 1) / N)``.

        None for fewer than two values, where one is infinite, and where no values were given.
        """
        size = round(self._sizes.total(group))
        if not self._has_values or size < 2 or not self._sums.finite(group) or not self._values.finite(group):
            return None
        one, total = 1 << SCALE, self._values.units(group)
        spread = self._powers.units(group) * size * one - total * total  # N Σ (x − m)²
        return math.sqrt(max(spread, 0) / (size * one * one) / (size - 1) / size)


def _add_products(sums: ExactSums, groups: Ints, a: Doubles, b: Doubles) -> None:
    finite = np.isfinite(a)
    for part in exact_products(a[finite], b[finite]):
        sums.add(groups[finite], part)
