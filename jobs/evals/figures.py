"""The figures of an evaluation as a table: one row for each task, filter and metric, then those of the groups.

A function of lm-eval's results. Figures that are no numbers are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ..terminal.tables import align_columns, figure

FIGURES = pa.schema(
    [
        ("task", pa.string()),
        ("is_group", pa.bool_()),
        ("filter", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("stderr", pa.float64()),
        ("higher_is_better", pa.bool_()),
        ("num_fewshot", pa.int32()),
        ("samples", pa.int64()),
    ]
)
FIGURE_HEADINGS = ("task", "filter", "metric", "value", "documents", "few-shot")


def figures_table(results: Mapping[str, Any]) -> pa.Table:
    """Returns the table of lm-eval's ``results``. stderr: of the mean, null where lm-eval gives none. samples: documents."""
    groups = results.get("groups") or {}
    tasks = {name: values for name, values in results["results"].items() if name not in groups}
    rows = [row for name, values in tasks.items() for row in _rows(results, name, values, is_group=False)]
    rows += [row for name, values in groups.items() for row in _rows(results, name, values, is_group=True)]
    return pa.Table.from_pylist(rows, FIGURES)


def figure_cells(rows: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Returns the cells of each row below ``FIGURE_HEADINGS``; a task's name stands where its first figure does."""
    cells: list[list[str]] = []
    last = ""
    for row in rows:
        arrow = {True: "↑", False: "↓"}.get(row["higher_is_better"], "")
        counts = ["–" if row[name] is None else f"{row[name]:,}" for name in ("samples", "num_fewshot")]
        value = "NaN" if row["value"] is None else figure(row["value"], row["stderr"])
        name = f"{row['task']} (group)" if row["is_group"] else row["task"]
        cells.append(["" if name == last else name, row["filter"], f"{row['metric']} {arrow}".rstrip(), value, *counts])
        last = name
    return cells


def figures_closing(table: pa.Table) -> str:
    """Returns the figures as text for a terminal."""
    return "\n".join(align_columns([list(FIGURE_HEADINGS), *figure_cells(table.to_pylist())], 3))


def _rows(results: Mapping[str, Any], task: str, values: Mapping[str, Any], is_group: bool) -> Iterator[dict[str, Any]]:
    counted: Mapping[str, Any] = (results.get("n-samples") or {}).get(task) or {}
    better: Mapping[str, Any] = (results.get("higher_is_better") or {}).get(task) or {}
    for key, value in values.items():
        metric, _, name = key.partition(",")
        if not name or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        error = values.get(f"{metric}_stderr,{name}")
        yield {
            "task": task,
            "is_group": is_group,
            "filter": name,
            "metric": metric,
            "value": float(value),
            "stderr": float(error) if isinstance(error, int | float) else None,
            "higher_is_better": better.get(metric),
            "num_fewshot": (results.get("n-shot") or {}).get(task),
            "samples": counted.get("effective"),
        }
