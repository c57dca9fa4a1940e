"""Counts values in equal bins, batch by batch, so that a histogram of a million rows can be drawn.

Memory does not grow with the number of values. Knows no records and no charts.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..statistics.bar_widths import bins_in_a_bar

Numbers = NDArray[np.float64] | NDArray[np.float32] | NDArray[np.int64] | NDArray[np.int32]

_BARS = 36  # of a chart, at most
_DISTINCT = 16  # values, and gaps between them, up to which each value has a bar of its own
_TAIL = 0.001  # share of the values on each side that a chart may leave out, where it would shrink the others to a line


@dataclass(slots=True, frozen=True)
class Bar:
    """A bar of a histogram: ``count`` values from ``start`` up to, but not with, ``end``.

    value: the single value that the bar is drawn about; None for a range.
    """

    start: float
    end: float
    count: int
    value: float | None = None


@dataclass(slots=True, frozen=True)
class Histogram:
    """Bars side by side. below, above: how many values lie outside of them, which are not drawn. whole: values are integers."""

    bars: list[Bar]
    below: int
    above: int
    whole: bool = False

    @property
    def mirrored(self) -> "Histogram":
        """The histogram of the negated values."""
        bars = [Bar(-bar.end, -bar.start, bar.count, None if bar.value is None else -bar.value) for bar in reversed(self.bars)]
        return Histogram(bars, self.above, self.below, self.whole)


@dataclass(slots=True)
class Bins:
    """Bins ``width`` wide from ``low`` up to ``high``. Values outside count in the first or the last bin.

    whole: the values are integers. infinite: count of infinite and NaN values, which are in no bin. total: sum of the values in
    bins. distinct: value -> count; None where there are too many distinct values.
    """

    low: float
    width: float
    high: float
    whole: bool = False
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    infinite: int = 0
    total: float = 0.0
    distinct: dict[float, int] | None = field(default_factory=dict[float, int])

    def add(self, values: Numbers) -> None:
        """Counts ``values`` [N]."""
        finite = values[np.isfinite(values)]
        self.infinite += len(values) - len(finite)
        if not len(finite):
            return
        self.total += float(finite.sum(dtype=np.float64))
        self._count_distinct(finite)
        last = round((self.high - self.low) / self.width) - 1
        counts = np.bincount(np.clip((finite - self.low) / self.width, 0, last).astype(np.int64))
        longer, shorter = (counts, self.counts) if len(counts) > len(self.counts) else (self.counts, counts)
        longer[: len(shorter)] += shorter
        self.counts = longer

    def _count_distinct(self, values: Numbers) -> None:
        """Counts each of the values [N], as long as there are few distinct ones."""
        if self.distinct is None:
            return
        for value, count in zip(*(each.tolist() for each in np.unique(np.round(values, 12), return_counts=True)), strict=True):
            self.distinct[value] = self.distinct.get(value, 0) + count
            if len(self.distinct) > _DISTINCT:
                self.distinct = None
                return

    @property
    def count(self) -> int:
        """The number of values in bins."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float | None:
        """The mean of the values in bins; None without any."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Returns the value below which ``share`` of the values lie, to within a bin; exact for integers; None without values."""
        if not self.count:
            return None
        at = int(np.searchsorted(np.cumsum(self.counts), share * self.count, side="left"))
        return self.low + self.width * (at if self.whole else at + 0.5)

    def histogram(self) -> Histogram:
        """Returns at most about 36 bars of a round width. Tails of a thousandth are cut where they would fill half of the chart.

        Few values near each other have a bar each: 0 and 1 become two bars, not ranges from 0 to 0.2 and from 1 to 1.2.
        """
        if self.distinct and (bars := _bars_of(self.distinct)):
            return Histogram(bars, 0, 0, self.whole)
        filled = np.flatnonzero(self.counts)
        if not len(filled):
            return Histogram([], 0, 0, self.whole)
        first, last = int(filled[0]), int(filled[-1])
        sums = np.cumsum(self.counts)
        cut = int(np.searchsorted(sums, _TAIL * sums[-1], side="right")), int(np.searchsorted(sums, (1 - _TAIL) * sums[-1]))
        if 2 * (cut[1] - cut[0]) < last - first:
            first, last = cut
        step = bins_in_a_bar(last - first + 1, self.width, _BARS)
        start = math.floor((self.low / self.width + first) / step + 1e-9) * step - round(self.low / self.width)
        edges = range(start, last + 1, step)
        padded = np.concatenate([np.zeros(max(0, -start), np.int64), self.counts[max(0, start) :]])
        bars = [
            Bar(self.low + at * self.width, self.low + (at + step) * self.width, int(padded[at - start : at - start + step].sum()))
            for at in edges
        ]
        drawn, below = sum(bar.count for bar in bars), int(self.counts[: max(0, start)].sum())
        return Histogram(bars, below, self.count - drawn - below, self.whole)


def _bars_of(distinct: dict[float, int]) -> list[Bar]:
    """Returns a bar about each value, three fifths of the least gap wide; nothing where gaps differ too much to draw."""
    values = sorted(distinct)
    gap = min((high - low for low, high in pairwise(values)), default=1.0)
    if values[-1] - values[0] > _DISTINCT * gap:
        return []
    return [Bar(value - 0.3 * gap, value + 0.3 * gap, distinct[value], value) for value in values]
