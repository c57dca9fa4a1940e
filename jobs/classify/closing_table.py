"""Shows the statistics of a classification on the terminal, when a run ends. Needs only the table of statistics.py."""

from typing import Any

import pyarrow as pa

from ..terminal.tables import align_columns, count_text, figure, shorten, terminal_width, wrap_table

LABELS = 20  # shown; stats.arrow has them all
NAME_WIDTH = 30
Row = dict[str, Any]


def classify_closing(table: pa.Table) -> str:
    """Returns the statistics as aligned text: the figures, the labels, the confusions and notes."""
    row = table.slice(0, 1).to_pylist()[0]
    if not row["rows"]:
        return ""
    blocks = wrap_table(["", "all"], [[heading, cell] for heading, cell in main_figures(row)], terminal_width())
    if row.get("labels"):
        blocks.append(_labels(row["labels"]))
    if wrong := [pair for pair in row.get("confusion") or [] if pair["true_label"] != pair["label"]]:
        blocks.append(_confusions(wrong))
    blocks.append(figure_notes(row))
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def main_figures(row: Row) -> list[tuple[str, str]]:
    """Returns heading and value of each main figure."""
    figures = [("pairs" if "ties" in row else "rows", figure(row["rows"]))]
    if "documents" in row:
        figures.append(("documents", figure(row["documents"])))
    if "acc" in row:
        figures.append(("accuracy, %", _percent(row, "acc")))
    for name, heading in (("mean_margin", "mean margin"), ("mean_chosen_score", "chosen"), ("mean_rejected_score", "rejected")):
        if name in row:
            figures.append((heading, figure(row[name], row[f"{name}_stderr"])))
    if "mean_score" in row:
        figures.append(("mean score", figure(row["mean_score"], row["mean_score_stderr"])))
    return figures


def figure_notes(row: Row) -> list[str]:
    """Returns notes on the meaning of ± and on what the figures leave out."""
    notes: list[str] = []
    if any(value is not None for name, value in row.items() if name.endswith("_stderr")):
        notes.append("± is the standard error" + (", clustered by row." if "documents" in row else "."))
    if "ties" in row:
        half = f"{count_text(row['ties'], 'tie')} {'counts' if row['ties'] == 1 else 'count'} half"
        notes.append("Accuracy: how often chosen has the larger score" + (f"; {half}." if row["ties"] else "."))
    elif "documents" in row and "acc" in row:
        notes.append("Accuracy: how often the right document is ranked first.")
    if cut := row["truncated"]:
        notes.append(f"{count_text(cut, 'row')} {'was' if cut == 1 else 'were'} cut: longer than classify.max_length or the model allows.")
    if "labelled" in row and (missing := row["rows"] - row["labelled"]):
        notes.append(f"{count_text(missing, 'row')} {'has' if missing == 1 else 'have'} no label.")
    return notes


def _percent(row: Row, name: str) -> str:
    value, error = row[name], row[f"{name}_stderr"]
    return figure(None if value is None else 100 * value, None if error is None else 100 * error)


def _labels(labels: list[Row]) -> list[str]:
    ordered = sorted(labels, key=lambda each: -each["rows"])
    cells = [[shorten(each["label"], NAME_WIDTH), f"{each['rows']:,}", f"{100 * each['share']:.1f}"] for each in ordered[:LABELS]]
    more = [f"… and {count_text(left, 'more label', 'more labels')} in stats.arrow"] if (left := len(ordered) - LABELS) > 0 else []
    return [*align_columns([["label", "rows", "share, %"], *cells], 1), *more]


def _confusions(wrong: list[Row]) -> list[str]:
    ordered = sorted(wrong, key=lambda each: -each["rows"])
    cells = [
        [shorten(each["true_label"], NAME_WIDTH), shorten(each["label"], NAME_WIDTH), f"{each['rows']:,}"] for each in ordered[:LABELS]
    ]
    left = len(ordered) - LABELS
    more = [f"… and {count_text(left, 'more pair')} in stats.arrow"] if left > 0 else []
    return [*align_columns([["right label", "found", "rows"], *cells], 2), *more]
