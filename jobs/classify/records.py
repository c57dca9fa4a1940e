"""Turns logits into records: the columns of each form of input, and their values. Statistics need nothing else."""

from typing import Any

import pyarrow as pa

from ...configs.classify import Form
from ...runner.core.arrays import Floats
from .score_rule import ScoreRule, ranking

Columns = list[tuple[str, pa.DataType]]

LENGTHS: Columns = [("tokens", pa.int32()), ("truncated", pa.bool_())]
PREFERENCE: Columns = [
    ("logits", pa.list_(pa.float32(), 2)),
    *((name, pa.float32()) for name in ("chosen_score", "rejected_score", "margin")),
]
FLOATS = pa.list_(pa.float32())
DOCUMENTS: Columns = [("logits", FLOATS), ("scores", FLOATS), ("ranking", pa.list_(pa.int32()))]


def form_columns(form: Form, rule: ScoreRule, logits: int, *, labelled: bool) -> Columns:
    """Returns the columns of a form, after those that every record has. labelled: rows bring the right label."""
    if form == "preference":
        return [*PREFERENCE, *LENGTHS]
    truth: Columns = [("true_label", pa.int32() if form == "documents" else pa.string()), ("correct", pa.bool_())] if labelled else []
    if form == "documents":
        return [*DOCUMENTS, *truth, *LENGTHS]
    named: Columns = [("label", pa.string())] if rule.labels else []
    return [("logits", pa.list_(pa.float32(), logits)), *named, ("score", pa.float32()), *truth, *LENGTHS]


def form_values(form: Form, rule: ScoreRule, logits: Floats, label: int | None) -> dict[str, Any]:
    """Returns a record's values under the names of its form's columns.

    logits: [n, D], of the row's n inputs. label: the place of the right label, or of the right one of documents; None if unknown.
    """
    if form == "preference":
        chosen, rejected = rule.scores(logits[:, 0])
        return {"logits": logits[:, 0], "chosen_score": chosen, "rejected_score": rejected, "margin": chosen - rejected}
    if form == "documents":
        order = ranking(logits[:, 0])
        truth = {"true_label": label, "correct": None if label is None else bool(order[0] == label)}
        return {"logits": logits[:, 0], "scores": rule.scores(logits[:, 0]), "ranking": order, **truth}
    winner = rule.winner(logits[0])
    values: dict[str, Any] = {"logits": logits[0], "score": rule.score(logits[0])}
    if rule.labels:
        values |= {"label": rule.labels[winner], "true_label": None if label is None else rule.labels[label]}
        values["correct"] = None if label is None else winner == label
    return values
