"""Builds the section and the cards of a classification: labels, scores, margins, and which labels are taken for which.

Knows the figures of class_figures.py and the row of statistics, and no files.
"""

from collections.abc import Iterator
from typing import Any

from ..report_data.bins import Bins
from ..report_data.class_figures import ClassFigures
from ..terminal.tables import count_text, figure, shorten
from .charts import Chart, bars, histogram_chart
from .page import Card, PageSection, Table, table

Row = dict[str, Any]

_BARS, _MATRIX, _PAIRS, _NAME = 20, 12, 20, 24


def classification(found: ClassFigures | None, row: Row | None) -> PageSection | None:
    """Shows the labels, scores and margins; None for another job. row: the statistics over all records, None where there are none yet."""
    if found is None or not found.scores.count:
        return None
    charts: list[Chart] = []
    if total := found.labels.total():
        ordered = found.labels.most_common()
        shown = [(label, count) for label, count in ordered[:_BARS] if count]
        words = ", ".join(f"{shorten(label, _NAME)} {100 * count / total:.1f} %" for label, count in shown[:5])
        more = f" {len(ordered) - _BARS:,} rarer labels are not drawn." if len(ordered) > _BARS else ""
        charts.append(Chart("labels", "Labels", f"{words}.{more}", bars(shown, "records")))
    charts.append(_histogram("scores", "Scores", found.scores, "score", found.unit))
    if found.margins.count:
        charts.append(_histogram("margins", "Margins", found.margins, "chosen minus rejected", "pairs"))
    tables = [_confusion(row["confusion"])] if row and row.get("confusion") else []
    return PageSection("classification", "Classification", "", charts, tables)


def class_cards(found: ClassFigures | None, row: Row | None) -> Iterator[Card]:
    """Yields the accuracy of preferences, or the mean score."""
    if found is None or not found.scores.count:
        return
    pairs = found.margins.count
    if pairs:
        error = None if row is None else row.get("acc_stderr")
        ties = f", {count_text(found.ties, 'tie')} counted half" if found.ties else ""
        note = f"chosen is ahead in {found.ahead:,} of {count_text(pairs, 'pair')}{ties}"
        yield Card("Accuracy", figure((found.ahead + found.ties / 2) / pairs, error), note)
        yield Card(
            "Mean margin", figure(found.margins.mean, None if row is None else row.get("mean_margin_stderr")), "chosen minus rejected"
        )
    elif not found.labels:
        yield Card("Mean score", figure(found.scores.mean, None if row is None else row.get("mean_score_stderr")))


def _histogram(name: str, title: str, values: Bins, x: str, y: str) -> Chart:
    found = values.histogram()
    low, median, high = (values.quantile(share) or 0.0 for share in (0.05, 0.5, 0.95))
    words = f"Median {median:.3g}, mean {values.mean or 0:.4g}; nine in ten lie between {low:.3g} and {high:.3g}."
    if outside := found.below + found.above:
        words += f" {outside:,} far off are not drawn."
    return Chart(name, title, words, histogram_chart(found, x, y))


def _confusion(pairs: list[Row]) -> Table:
    """Shows how often each right label got each label: as a matrix where labels are few, else the most frequent mistakes."""
    names = list(dict.fromkeys([pair["true_label"] for pair in pairs] + [pair["label"] for pair in pairs]))
    if len(names) > _MATRIX:
        wrong = sorted((pair for pair in pairs if pair["true_label"] != pair["label"]), key=lambda pair: -pair["rows"])[:_PAIRS]
        cells = [[pair["true_label"], pair["label"], f"{pair['rows']:,}"] for pair in wrong]
        return table("Most frequent mistakes", ["right label", "found", "rows"], cells, left=2)
    counts = {(pair["true_label"], pair["label"]): pair["rows"] for pair in pairs}
    cells = [[true, *(f"{counts.get((true, label), 0):,}" for label in names)] for true in names]
    words = "Rows by their right label (down) and the label that was found (across)."
    return table("Confusion", ["right label", *(shorten(name, _NAME) for name in names)], cells, words=words)
