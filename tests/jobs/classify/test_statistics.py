"""Tests the statistics of classifications in closed forms, and what is printed of them."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.configs.classify import Form
from mlx_bulk.jobs.classify.closing_table import classify_closing
from mlx_bulk.jobs.classify.records import form_columns
from mlx_bulk.jobs.classify.score_rule import ScoreRule
from mlx_bulk.jobs.classify.statistics import classify_statistics

from ..support.score_runs import write_parts

Json = dict[str, Any]
LABELS = ("bad", "good", "fair")


def figures(root: Path, form: Form, records: list[Json], labels: tuple[str, ...] = (), *, labelled: bool = False) -> tuple[Json, str]:
    """The statistics of these records, and what is printed of them. Parts and batches are small."""
    columns = form_columns(form, ScoreRule(labels, "none"), max(1, len(labels)), labelled=labelled)
    schema = pa.schema([("row", pa.int64()), *columns])
    full = [{"row": row, "truncated": False, **record} for row, record in enumerate(records)]
    table = classify_statistics(write_parts(root, schema, full, per_part=3, per_batch=2), form, labels, labelled=labelled)
    return table.to_pylist()[0], classify_closing(table)


def test_ties_count_half_in_the_accuracy_of_preferences(tmp_path: Path) -> None:
    """1, 1, 0, ½ are right: 0.625, with squares 2 · 0.375² + 0.625² + 0.125² = 0.6875 over 4 · 3."""
    margins = [2.0, 1.0, -1.0, 0.0]
    records = [
        {"logits": [margin + 1, 1.0], "chosen_score": margin + 1, "rejected_score": 1.0, "margin": margin, "truncated": margin < 0}
        for margin in margins
    ]
    row, text = figures(tmp_path, "preference", records)
    assert (row["rows"], row["acc"], row["ties"], row["truncated"]) == (4, 0.625, 1, 1)
    assert row["acc_stderr"] == pytest.approx(math.sqrt(0.6875 / 12), rel=1e-12)
    assert (row["mean_margin"], row["mean_chosen_score"], row["mean_rejected_score"]) == (0.5, 1.5, 1.0)
    assert row["mean_margin_stderr"] == pytest.approx(math.sqrt(5 / 12), rel=1e-12)
    assert "62 ± 24" in text
    assert "Accuracy: how often chosen has the larger score; 1 tie counts half." in text
    assert "1 row was cut: longer than classify.max_length or the model allows." in text


def test_scores_that_are_rounded_to_the_same_are_no_tie(tmp_path: Path) -> None:
    records = [{"logits": [30.0, 20.0], "chosen_score": 1.0, "rejected_score": 1.0, "margin": 0.0, "truncated": False}]
    row, _ = figures(tmp_path, "preference", records)
    assert (row["acc"], row["ties"]) == (1.0, 0)


def test_labels_are_counted_and_confused_ones_shown(tmp_path: Path) -> None:
    pairs = [("good", "good"), ("good", "bad"), ("bad", "bad"), (None, "bad"), ("good", "bad")]
    records = [
        {"label": found, "true_label": true, "correct": None if true is None else true == found, "score": float(at)}
        for at, (true, found) in enumerate(pairs)
    ]
    row, text = figures(tmp_path, "prompt", records, LABELS, labelled=True)
    assert row["labels"] == [
        {"label": "bad", "rows": 4, "share": 0.8},
        {"label": "good", "rows": 1, "share": 0.2},
        {"label": "fair", "rows": 0, "share": 0.0},
    ]
    assert (row["labelled"], row["acc"], row["mean_score"]) == (4, 0.5, 2.0)
    assert row["acc_stderr"] == pytest.approx(math.sqrt(1 / 12), rel=1e-12)
    assert row["mean_score_stderr"] == pytest.approx(math.sqrt(10 / 20), rel=1e-12)
    assert [tuple(pair.values()) for pair in row["confusion"]] == [("bad", "bad", 1), ("good", "bad", 2), ("good", "good", 1)]
    assert [line.split() for line in text.splitlines() if line.startswith("good")] == [["good", "1", "20.0"], ["good", "bad", "2"]]
    assert "1 row has no label." in text


def test_documents_are_clusters_of_their_row(tmp_path: Path) -> None:
    """Means 1.5 of [1], [1, 4, 0]: residuals of the rows are ±0.5 over 4 documents, so the error is 0.25, as for tokens of documents."""
    records = [
        {"scores": [1.0], "logits": [1.0], "ranking": [0], "true_label": 0, "correct": True},
        {"scores": [1.0, 4.0, 0.0], "logits": [1.0, 4.0, 0.0], "ranking": [1, 0, 2], "true_label": 0, "correct": False},
    ]
    row, text = figures(tmp_path, "documents", records, labelled=True)
    assert (row["rows"], row["documents"], row["mean_score"], row["mean_score_stderr"], row["acc"]) == (2, 4, 1.5, 0.25, 0.5)
    assert "Accuracy: how often the right document is ranked first." in text


@pytest.mark.parametrize(("form", "labels"), [("prompt", LABELS), ("pair", ()), ("documents", ()), ("preference", ())])
def test_nothing_at_all_is_null_and_not_zero(tmp_path: Path, form: Form, labels: tuple[str, ...]) -> None:
    row, text = figures(tmp_path, form, [], labels)
    means = {name for name in row if name.startswith(("mean", "acc"))}
    assert (row["rows"], {row[name] for name in means}, text) == (0, {None}, "")


def test_one_row_has_no_error(tmp_path: Path) -> None:
    row, text = figures(tmp_path, "prompt", [{"score": 0.5}])
    assert (row["mean_score"], row["mean_score_stderr"]) == (0.5, None)
    assert "±" not in text
