"""A histogram as lines for a terminal. Knows numbers only."""

from collections.abc import Sequence
from math import ceil, log10

import numpy as np

BINS = 10
_BLOCKS = " ▏▎▍▌▋▊▉"
_BAR = 40


def text_histogram(values: Sequence[int], width: int) -> list[str]:
    """Whole numbers, at least one of them, as a bar a range of round width, with how many there are.

    What the longest hundredth has beyond the others is one range, where it would make most of the chart.
    """
    found = np.array(values, np.int64)
    low, high, most = int(found.min()), int(found.max()), int(np.percentile(found, 99, method="higher"))
    end = most if high - low > 2 * (most - low) else high
    step = _round(max(1, end - low + 1) / BINS)
    edges = list(range(low // step * step, end + 1, step))
    counts = np.bincount(np.minimum((found - edges[0]) // step, len(edges)), minlength=len(edges))
    names = [f"{edge:,} – {edge + step - 1:,}" if step > 1 else f"{edge:,}" for edge in edges]
    if len(counts) > len(edges):
        names.append(f"{edges[-1] + step:,} and more")
    wide, digits = max(map(len, names)), len(f"{counts.max():,}")
    room = max(4, min(_BAR, width - wide - digits - 2))
    return [f"{name:>{wide}} {_bar(int(n) / int(counts.max()), room)} {n:,}" for name, n in zip(names, counts.tolist(), strict=True)]


def _round(step: float) -> int:
    """The least of 1, 2, 5, 10, 20, … that is not below ``step``."""
    power = 10 ** max(0, int(log10(step)))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step)


def _bar(share: float, room: int) -> str:
    """A bar in eighths of a column; what is there at all shows."""
    eighths = max(ceil(share * 8 * room) if share else 0, 0)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()
