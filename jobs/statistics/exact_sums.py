"""Adds float64 numbers without rounding, one sum for each group. The order and the batches in which they come do not matter.

A sum is a whole number of 2^-1200, so Python's integers hold it. It takes some two hundred bytes a group, however many
numbers come.
"""

import numpy as np

from ...runner.core.arrays import Doubles, Ints

SCALE = 1200  # a sum is its integer times 2^-SCALE; the smallest double is 2^-1074, and its 53 bits count down to 2^-1127
_HALF = 27  # bits of a mantissa's lower half: fewer than 2^26 halves add up exactly in float64


class ExactSums:
    """The sums of groups 0, 1, 2 …, all 0 at first."""

    def __init__(self) -> None:
        self._units: list[int] = []
        self._odd: dict[int, float] = {}  # sums of what is not finite

    def add(self, groups: Ints, values: Doubles) -> None:
        """Adds values [N], fewer than 2^26 of them, to the sums of their groups [N]."""
        if not len(values):
            return
        self._units += [0] * (int(groups.max()) + 1 - len(self._units))
        if not (finite := np.isfinite(values)).all():
            for group, value in zip(groups[~finite].tolist(), values[~finite].tolist(), strict=True):
                self._odd[group] = self._odd.get(group, 0.0) + value
            groups, values = groups[finite], values[finite]
            if not len(values):
                return
        mantissas, exponents = np.frexp(values)
        whole = np.ldexp(mantissas, 53).astype(np.int64)
        present, own = np.unique(groups, return_inverse=True)
        low, wide = int(exponents.min()), int(exponents.max()) - int(exponents.min()) + 1
        places = own * wide + (exponents - low)
        highs, lows = (np.bincount(places, weights=half) for half in (whole >> _HALF, whole & ((1 << _HALF) - 1)))
        for place in np.flatnonzero((highs != 0) | (lows != 0)).tolist():
            group, exponent = divmod(place, wide)
            units = (int(highs[place]) << _HALF) + int(lows[place])
            self._units[int(present[group])] += units << (exponent + low - 53 + SCALE)

    def units(self, group: int | None) -> int:
        """Returns the sum of a group's finite numbers, or of all groups', in units of 2^-SCALE."""
        if group is None:
            return sum(self._units)
        return self._units[group] if group < len(self._units) else 0

    def total(self, group: int | None) -> float:
        """Returns a group's sum, or that of all groups, correctly rounded; infinite or NaN where a number is."""
        odd = list(self._odd.values()) if group is None else [self._odd[group]] if group in self._odd else []
        return sum(odd) if odd else rounded(self.units(group))

    def finite(self, group: int | None) -> bool:
        """Returns True where all numbers of a group, or of all groups, are finite."""
        return not self._odd if group is None else group not in self._odd


def rounded(units: int) -> float:
    """Returns units of 2^-SCALE as the nearest float64."""
    return units / (1 << SCALE)


def exact_products(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Returns rounded products and what rounding took away: their sums are the products (Dekker 1971). Finite numbers below 1e150."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = (_split(x) for x in (a, b))
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(x: Doubles) -> tuple[Doubles, Doubles]:
    shifted = x * 134217729.0  # 2^27 + 1
    high = shifted - (shifted - x)
    return high, x - high
