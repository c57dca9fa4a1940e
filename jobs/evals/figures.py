"""The figures of an evaluation as a table: one row for each task, filter and metric, then those of the groups.

A function of lm-eval's results. Figures that are no numbers are left out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

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


def figures_table(results: Mapping[str, Any]) -> pa.Table:
    """Returns the table of lm-eval's ``results``. stderr: of the mean, null where lm-eval gives none. samples: documents."""
    groups = results.get("groups") or {}
    tasks = {name: values for name, values in results["results"].items() if name not in groups}
    rows = [row for name, values in tasks.items() for row in _rows(results, name, values, is_group=False)]
    rows += [row for name, values in groups.items() for row in _rows(results, name, values, is_group=True)]
    return pa.Table.from_pylist(rows, FIGURES)


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
