"""Formats tables for a terminal: aligned columns, and figures with their standard errors. Knows no run and no statistic."""

import math
import os
import sys
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

NO_TERMINAL = 100  # columns, where stderr goes to a file or a pipe
_FOLDED_LINES = 4  # of one message


def terminal_width() -> int:
    """Returns the columns of the terminal on stderr, 100 where stderr is no terminal."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or NO_TERMINAL
    except (OSError, ValueError):  # no terminal; a stream without a file
        return NO_TERMINAL


def figure(value: float | None, error: float | None = None) -> str:
    """Formats a number for a table: ``1,234``, ``0.5678``; with a standard error ``12.35 ± 0.67``, rounded to its second digit.

    Whole numbers stay whole, others have four digits; None is "–".
    """
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if error is None or not math.isfinite(value) or not math.isfinite(error):
        return _four_digits(value)
    if error == 0:
        return f"{_four_digits(value)} ± 0"
    digits = 1 - math.floor(math.log10(error))
    if digits > 7:  # an error of rounding alone
        return f"{_four_digits(value)} ± {error:.1e}"
    if abs(value) >= 1e7:
        return f"{value:.2e} ± {error:.1e}"
    return f"{value:,.{max(0, digits)}f} ± {error:,.{max(0, digits)}f}"


def _four_digits(value: float) -> str:
    if value == 0 or math.isnan(value):
        return "0" if value == 0 else "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    digits = 3 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(0, digits)}f}" if -3 < digits < 8 else f"{value:.2e}"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """Formats a count with its noun: ``1 record``, ``2 records``; ``many`` is a plural that needs more than an s.

    >>> count_text(1, "file"), count_text(2000, "file"), count_text(2, "policy", "policies")
    ('1 file', '2,000 files', '2 policies')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def shorten(text: str, width: int) -> str:
    """Returns ``text`` on one line of at most ``width`` columns; an ellipsis marks the cut."""
    text = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    while width_of(text) > width:
        text = f"{text.removesuffix('…')[:-1]}…"
    return text


def width_of(text: str) -> int:
    """Counts the columns of a text on a terminal: East Asian wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def align_columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Formats the rows (a heading first) as lines, with two spaces between columns.

    The first ``left`` columns are left-aligned, the others right-aligned with their ± below each other.
    """
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns = [_set_left(column) if number < left else _set_right(column) for number, column in enumerate(columns)]
    return ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]


def wrap_table(names: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Formats a table as blocks of lines that fit into ``width``: as few as possible, about equally wide.

    names: the first cell of each line, in every block; columns: the cells of each column, its heading first. A column that is too
    wide by itself gets a block of its own.
    """
    blocks = _filled(names, columns, width)
    narrow = next(limit for limit in range(width + 1) if len(_filled(names, columns, limit)) <= len(blocks)) if len(blocks) > 1 else width
    return [align_columns(list(zip(names, *block, strict=True)), 1) for block in _filled(names, columns, narrow)]


def _filled(names: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> list[list[Sequence[str]]]:
    """Splits the columns into blocks that each hold as many as fit."""
    blocks: list[list[Sequence[str]]] = []
    name_width, free = max(map(width_of, names)), 0
    for column in columns:
        column_width = 2 + width_of(_set_right(list(column))[0])
        if not blocks or column_width > free:
            blocks.append([])
            free = width - name_width
        blocks[-1].append(column)
        free -= column_width
    return blocks


def _set_left(cells: list[str]) -> list[str]:
    widest = max(map(width_of, cells))
    return [cell + " " * (widest - width_of(cell)) for cell in cells]


def _set_right(cells: list[str]) -> list[str]:
    heading, *rest = cells
    pieces = [cell.partition(" ± ") for cell in rest]
    widest = max((len(error) for _, _, error in pieces), default=0)
    room = " " * (3 + widest if widest else 0)
    cells = [heading, *(f"{value} ± {error:<{widest}}" if error else value + room for value, _, error in pieces)]
    width = max(map(width_of, cells))
    return [" " * (width - width_of(cell)) + cell for cell in cells]


_BARS = "▁▂▃▄▅▆▇█"


def fold(text: str, width: int) -> list[str]:
    """Breaks the text into lines of at most ``width`` columns, between words or within a longer one; cuts what exceeds four lines."""
    lines = [""]
    for word in text.split(" "):
        if width_of(f"{lines[-1]} {word}") <= width:
            lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
            continue
        lines += [""] * bool(lines[-1])
        for character in word:
            if width_of(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return lines if len(lines) <= _FOLDED_LINES else [*lines[: _FOLDED_LINES - 1], shorten(f"{lines[_FOLDED_LINES - 1]} …", width)]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draws the values as bars above zero, the highest full; more than ``width`` values are averaged in neighbouring groups."""
    if len(values) > width:
        edges = [round(at * len(values) / width) for at in range(width + 1)]
        values = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    top = max(values, default=0.0)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] if top else _BARS[0] for value in values)
