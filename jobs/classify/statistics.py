"""Computes the statistics of a classification for stats.arrow and summary.json: one row over all records.

They follow from the records alone, and depend neither on their order nor on batches. What there is nothing to compute from is null.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.classify import Form
from ...runner.core.arrays import Doubles, Ints
from ...runner.store.results import read_results
from ..statistics.mean_sums import MeanSums
from ..statistics.standard_errors import float_column

LABELS = pa.list_(pa.struct([("label", pa.string()), ("rows", pa.int64()), ("share", pa.float64())]))
CONFUSION = pa.list_(pa.struct([("true_label", pa.string()), ("label", pa.string()), ("rows", pa.int64())]))
TYPES = {
    "of": pa.string(),
    "group": pa.string(),
    **dict.fromkeys(("rows", "truncated", "documents", "labelled", "ties"), pa.int64()),
    "labels": LABELS,
    "confusion": CONFUSION,
}


@dataclass(slots=True)
class _Sums:
    """The sums of records. counts: by name; means: by the name of what is averaged; predicted, pairs: rows by label, by both labels."""

    counts: Counter[str] = field(default_factory=Counter[str])
    means: dict[str, MeanSums] = field(default_factory=dict[str, MeanSums])
    predicted: Counter[str] = field(default_factory=Counter[str])
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def add_mean(self, name: str, values: Doubles, counts: Ints | None = None) -> None:
        """Adds rows: the sum of each one's values, and how many they are (one where nothing is said)."""
        counts = np.ones(len(values), np.int64) if counts is None else counts
        self.counts[f"of {name}"] += int(counts.sum())
        self.means.setdefault(name, MeanSums()).add(np.zeros(len(values), np.int64), values, counts)

    def mean(self, name: str) -> dict[str, float | None]:
        """Returns a mean and its standard error; rows with several values are clusters."""
        sums, count = self.means.get(name), self.counts[f"of {name}"]
        if sums is None or not count:
            return {name: None, f"{name}_stderr": None}
        return {name: sums.total(None) / count, f"{name}_stderr": sums.clustered_error(None)}


def classify_statistics(run: Path, form: Form, labels: tuple[str, ...], *, labelled: bool) -> pa.Table:
    """Returns the statistics of all records in the run directory. labels: the model's. labelled: rows brought the right ones.

    ``acc`` is the share of rows that are right; of preferences the share in which the chosen answer has the larger logit, where a tie
    counts half. Raises RunDirError where a part is missing or lacks a column.
    """
    sums = _Sums()
    columns = (
        ["logits", "chosen_score", "rejected_score", "margin"] if form == "preference" else ["scores" if form == "documents" else "score"]
    )
    columns += ["label"] if labels and form in ("prompt", "pair") else []
    columns += ["true_label", "correct"] if labelled else []
    for batch in read_results(run, [*columns, "truncated"]):
        _add(sums, batch, form)
    return _table(sums, form, labels, labelled)


def _add(sums: _Sums, batch: pa.RecordBatch, form: Form) -> None:
    names = set(batch.schema.names)
    sums.counts += Counter({"rows": batch.num_rows, "truncated": int(float_column(batch.column("truncated")).sum())})
    if form == "preference":
        for name in ("chosen_score", "rejected_score", "margin"):
            sums.add_mean(f"mean_{name}", float_column(batch.column(name)))
        logits = batch.column("logits").flatten().to_numpy().reshape(-1, 2)  # a sigmoid can round two to 1
        ties, wins = logits[:, 0] == logits[:, 1], logits[:, 0] > logits[:, 1]
        sums.counts["ties"] += int(ties.sum())
        sums.add_mean("acc", wins + 0.5 * ties)
    elif form == "documents":
        lists = batch.column("scores")
        counts = lists.value_lengths().to_numpy().astype(np.int64)
        values = lists.flatten().to_numpy().astype(np.float64)
        sums.counts["documents"] += len(values)
        sums.add_mean("mean_score", np.add.reduceat(values, np.cumsum(counts) - counts) if len(values) else values, counts)
    else:
        sums.add_mean("mean_score", float_column(batch.column("score")))
    if "label" in names:
        sums.predicted += Counter(batch.column("label").to_pylist())
    if "correct" in names:
        right = float_column(batch.column("correct"))
        sums.add_mean("acc", right[~np.isnan(right)])
    if {"label", "true_label"} <= names:
        both = zip(batch.column("true_label").to_pylist(), batch.column("label").to_pylist(), strict=True)
        sums.pairs += Counter((true, label) for true, label in both if true is not None)


def _table(sums: _Sums, form: Form, labels: tuple[str, ...], labelled: bool) -> pa.Table:
    rows = sums.counts["rows"]
    row: dict[str, Any] = {"of": "all", "group": None, "rows": rows}
    row |= {"documents": sums.counts["documents"]} if form == "documents" else {}
    row |= {"truncated": sums.counts["truncated"]}
    if form == "preference":
        row |= sums.mean("acc") | {"ties": sums.counts["ties"]}
        row |= sums.mean("mean_margin") | sums.mean("mean_chosen_score") | sums.mean("mean_rejected_score")
    else:
        row |= sums.mean("mean_score")
    if labelled:
        row |= {"labelled": sums.counts["of acc"]} | sums.mean("acc")
    if labels and form in ("prompt", "pair"):
        names = dict.fromkeys(labels)
        row["labels"] = [{"label": name, "rows": (n := sums.predicted[name]), "share": n / rows if rows else None} for name in names]
        if labelled:
            found = [(true, label) for true in names for label in names if sums.pairs[true, label]]
            row["confusion"] = [{"true_label": true, "label": label, "rows": sums.pairs[true, label]} for true, label in found]
    return pa.table({name: pa.array([value], TYPES.get(name, pa.float64())) for name, value in row.items()})
