"""Builds the report of a comparison: how two runs differ, with charts of their documents' differences.

Computes nothing but bins: compare.py compares, and compare/text.py formats the figures.
"""

import math
from datetime import datetime
from pathlib import Path

import numpy as np

from ...runner.core.arrays import Doubles
from ..compare.compare import RunComparison, compare_runs
from ..compare.text import figure_lines, largest_differences, pairing_notes, run_cells, setting_lines, statistic_lines
from ..report_data.bins import Bins
from .charts import Chart, ChartPoint, histogram_chart, scatter
from .page import Card, Page, PageSection, Table, table

_DOTS = 1_500
_MOST = 20


def pair_page(a: Path, b: Path) -> Page:
    """Returns the page that compares the run directories ``a`` and ``b``. Raises RunDirError as ``compared``."""
    found = compare_runs(a, b, _MOST)
    page = Page(
        title=f"{a.absolute().name} and {b.absolute().name}",
        subtitle="two runs side by side; differences are B − A",
        banner=[f"{note}." for note in found.notes],
        footer=f"Drawn on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z} from {a.absolute()} (A) and {b.absolute()} (B).",
    )
    page.cards = [Card(name, side.path.absolute().name, run_cells(side)[1]) for name, side in (("A", found.a), ("B", found.b))]
    if found.paired is not None:
        page.sections.append(_paired(found))
    page.sections.append(_apart(found))
    return page


def _paired(found: RunComparison) -> PageSection:
    """Shows the figures, a histogram of differences, each document as a dot, and those that differ most."""
    assert found.paired is not None
    paired = found.paired
    title, notes = pairing_notes(paired)
    tables = [Table("Figures", ["", "B − A"], table("", [], figure_lines(paired)).rows)]
    if lines := largest_differences(paired):
        heading, *rows = lines
        left = len(heading) - 3
        tables.append(table(f"The documents that differ most, by {paired.measure}", heading, rows, left=left))
    words = ". ".join([title, *notes]) + "."
    return PageSection("paired", "Document by document", words, list(_charts(*paired.values, paired.measure)), tables)


def _charts(a: Doubles, b: Doubles, measure: str) -> list[Chart]:
    there = np.isfinite(a) & np.isfinite(b)
    a, b = a[there], b[there]
    apart = b - a
    if not len(apart):
        return []
    width = float(np.abs(apart).max()) or 1.0  # where all are 0, that is what the only bar is drawn about
    step = 10.0 ** math.floor(math.log10(width / 20))
    bins = Bins(-math.ceil(width / step) * step, step, math.ceil(width / step) * step + step)
    bins.add(apart)
    less, more = int((apart < 0).sum()), int((apart > 0).sum())
    words = f"B is lower in {less:,}, higher in {more:,}, the same in {len(apart) - less - more:,}."
    charts = [Chart("differences", f"{measure}: B − A", words, histogram_chart(bins.histogram(), f"{measure}, B − A", "documents"))]
    some = np.linspace(0, len(a) - 1, min(_DOTS, len(a))).astype(np.int64)
    points = [ChartPoint(float(x), float(y), f"A {x:.4g}, B {y:.4g}, B − A {y - x:.3g}") for x, y in zip(a[some], b[some], strict=True)]
    words = "On the dashed line both are equal." + (f" {len(some):,} of {len(a):,}, evenly spread." if len(some) < len(a) else "")
    return [*charts, Chart("scatter", f"{measure}: A and B", words, scatter(points, "A", "B"))]


def _apart(found: RunComparison) -> PageSection:
    """Shows the settings that differ, and all statistics side by side."""
    tables = [table("Statistics", ["", "A", "B"], statistic_lines(found))]
    if lines := setting_lines(found):
        tables.insert(0, table("Settings that differ", ["", "A", "B"], lines, left=3, prose=(1, 2)))
    words = "" if found.settings else "Settings, weights and tokenizers are the same."
    return PageSection("runs", "The runs", words, tables=tables)
