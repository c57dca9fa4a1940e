"""Gathers a classification's figures for a report: labels, scores and margins in bins, and records worth a look.

Gathered while the records stream by. Knows no files and no charts.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...runner.core.arrays import Doubles, Ints
from ..statistics.standard_errors import float_column
from .bins import Bins
from .lowest import Lowest

CLASS_COLUMNS = ("logits", "label", "score", "scores", "chosen_score", "rejected_score", "margin", "correct", "tokens")
_SCORE_BINS = (-100.0, 0.001, 100.0)
_SORTS = {"wrong and sure": 12, "right and unsure": 8, "rejected ahead": 12}
_OTHERS = 8  # records of the other sorts


@dataclass(slots=True)
class ClassFigures:
    """The figures of the records so far.

    labels: by how many records have them. scores: of records, documents or answers, as ``unit`` says. margins: of preferences, with how
    many are above 0 (``ahead``) and how many are 0.
    """

    labels: Counter[str] = field(default_factory=Counter[str])
    scores: Bins = field(default_factory=lambda: Bins(*_SCORE_BINS))
    margins: Bins = field(default_factory=lambda: Bins(*_SCORE_BINS))
    unit: str = "records"
    ahead: int = 0
    ties: int = 0

    def add(self, batch: pa.RecordBatch, records: Ints, sorts: dict[str, Lowest]) -> None:
        """Adds the next records [N, 3] with ``CLASS_COLUMNS``, as far as their job has them, and picks some into ``sorts``."""
        names = set(batch.schema.names)
        if "margin" in names:
            self._add_preferences(batch, records, sorts)
            return
        if "label" in names:
            self.labels += Counter(batch.column("label").to_pylist())
        if "scores" in names:
            self.unit = "documents"
            self.scores.add(batch.column("scores").flatten().to_numpy().astype(np.float64))
        else:
            self.scores.add(float_column(batch.column("score")))
        if "score" in names and "label" not in names:
            values = float_column(batch.column("score"))
            _pick(sorts, {"highest score": -values, "lowest score": values}, records)
            return
        gaps = np.array([_gap(logits) for logits in batch.column("logits").to_pylist()], np.float64)
        picked = {"least confident": gaps, "most confident": -gaps}
        if "correct" in names:
            right = float_column(batch.column("correct"))
            picked |= {"wrong and sure": np.where(right == 0, -gaps, np.nan), "right and unsure": np.where(right == 1, gaps, np.nan)}
        _pick(sorts, picked, records)

    def _add_preferences(self, batch: pa.RecordBatch, records: Ints, sorts: dict[str, Lowest]) -> None:
        self.unit = "answers"
        for name in ("chosen_score", "rejected_score"):
            self.scores.add(float_column(batch.column(name)))
        margins = float_column(batch.column("margin"))
        self.margins.add(margins)
        self.ahead += int((margins > 0).sum())
        self.ties += int((margins == 0).sum())
        picked = {"rejected ahead": np.where(margins < 0, margins, np.nan), "closest": np.abs(margins), "widest margin": -margins}
        _pick(sorts, picked, records)


def is_classification(columns: Collection[str]) -> bool:
    """Returns True for the columns of a classification's records."""
    return "margin" in columns or "logits" in columns


def _gap(logits: list[float]) -> float:
    """Returns by how much the first of the logits is ahead of the second; of one logit how far it is from 0."""
    if len(logits) < 2:
        return abs(logits[0]) if logits else np.nan
    first, second = sorted(logits, reverse=True)[:2]
    return first - second


def _pick(sorts: dict[str, Lowest], scores: dict[str, Doubles], records: Ints) -> None:
    for sort, values in scores.items():
        sorts.setdefault(sort, Lowest(_SORTS.get(sort, _OTHERS))).add(values, records)
