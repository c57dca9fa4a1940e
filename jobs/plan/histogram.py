"""Draws a histogram as lines for a terminal. Knows numbers only."""

from collections.abc import Sequence
from math import ceil

import numpy as np

from ..statistics.bar_widths import bins_in_a_bar

BINS = 10
_BLOCKS = " ▏▎▍▌▋▊▉"
_BAR = 40


def text_histogram(values: Sequence[int], width: int) -> list[str]:
    """Draws whole numbers, at least one, as a bar for each range, with the count; the width of ranges is a round number.

    If the largest hundredth of the values would take most of the chart, its values share one last range.
    """
    numbers = np.array(values, np.int64)
    low, high, p99 = int(numbers.min()), int(numbers.max()), int(np.percentile(numbers, 99, method="higher"))
    end = p99 if high - low > 2 * (p99 - low) else high
    step = bins_in_a_bar(end - low + 1, 1, BINS)
    edges = list(range(low // step * step, end + 1, step))
    counts = np.bincount(np.minimum((numbers - edges[0]) // step, len(edges)), minlength=len(edges))
    names = [f"{edge:,} – {edge + step - 1:,}" if step > 1 else f"{edge:,}" for edge in edges]
    if len(counts) > len(edges):
        names.append(f"{edges[-1] + step:,} and more")
    name_width, digits = max(map(len, names)), len(f"{counts.max():,}")
    bar_width = max(4, min(_BAR, width - name_width - digits - 2))
    bars = [_bar(int(n) / int(counts.max()), bar_width) for n in counts.tolist()]
    return [f"{name:>{name_width}} {bar} {n:,}" for name, bar, n in zip(names, bars, counts.tolist(), strict=True)]


def _bar(share: float, width: int) -> str:
    """Draws a bar in eighths of a column; any share above 0 is visible."""
    eighths = max(ceil(share * 8 * width) if share else 0, 0)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
