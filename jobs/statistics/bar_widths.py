"""Chooses the widths of a histogram's bars: round numbers that are whole multiples of a bin's width."""

import math

_ROUND = (1, 2, 2.5, 5, 10, 20, 25, 50, 100)


def bins_in_a_bar(bins: int, width: float, most: int) -> int:
    """Returns how many bins of this width make a bar, so that ``bins`` make about ``most`` bars of a round width, or fewer."""
    least = bins / most
    scale = 10.0 ** math.floor(math.log10(max(1e-9, least * width)))
    for factor in _ROUND:
        count = factor * scale / width
        if count >= least - 1e-9 and abs(count - round(count)) < 1e-6 and round(count) >= 1:
            return round(count)
    return max(1, math.ceil(least))
