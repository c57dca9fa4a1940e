"""Compares two runs document by document: joins their records and says how the figures differ. Differences are B − A.

Knows the records' columns, but nothing else of a run; compare.py compares whole runs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...runner.core.arrays import Doubles, Ints
from ...runner.store.results import read_results
from ..statistics.standard_errors import clustered_error, float_column
from .paired_rewards import error_by_document, reward_figures
from .paired_texts import TextSums, TokenPair, shared_tokens, text_figures

Figures = dict[str, float | int | str | None]

TEXT = ("sum_logprob", "scored_tokens", "scored_bytes")
TOKENS = ("token_ids", "token_logprobs")
CHOICES = ("choice_logprobs", "prediction", "label", "correct")
COMPLETIONS = ("completion_ids", "cumulative_logprob")


@dataclass(frozen=True, slots=True)
class PairedRecords:
    """The result of comparing documents one by one.

    joined_by: "key" or "row"; matched: records in both runs; only_a, only_b: records in one alone. figures: by name, the
    standard error under the name with ``_stderr``. most: the documents that differ most by ``measure``, the most different first.
    values: of A and B [M], the measure of each matched record; NaN where it does not count.
    """

    joined_by: str
    matched: int
    only_a: int
    only_b: int
    figures: Figures
    measure: str
    most: list[dict[str, Any]]
    values: tuple[Doubles, Doubles]


@dataclass(frozen=True, slots=True)
class _Both:
    """The matched records of both runs, each in the order of A."""

    a: pa.Table
    b: pa.Table

    def numbers(self, name: str) -> tuple[Doubles, Doubles]:
        """A column of numbers in both; NaN for null."""
        return float_column(self.a.column(name)), float_column(self.b.column(name))


def pair_records(a: Path, b: Path, kind: str, by_key: bool, top: int) -> PairedRecords:
    """Compares the committed records of two runs of a ``kind``: "generate", "rollout", "choices", or another kind of scoring.

    Joins records by the user's keys or by position; completions also by sample, and rollouts also by round. ``top``: how many
    of the most different documents to name. Raises RunDirError where a part is missing or lacks a column.
    """
    columns = {"generate": COMPLETIONS, "rollout": COMPLETIONS, "choices": CHOICES}.get(kind, TEXT)
    if kind == "rollout" and all(_has_rewards(run) for run in (a, b)):
        columns = (*columns, "reward")
    identity = ["row", "key", *{"generate": ["sample"], "rollout": ["round", "sample"]}.get(kind, [])]
    table_a, table_b = (_records(run, [*identity, *columns]) for run in (a, b))
    left, right = _matches(table_a, table_b, ["key" if by_key else "row", *identity[2:]])
    both = _Both(table_a.take(left), table_b.take(right))
    if columns[: len(COMPLETIONS)] == COMPLETIONS:
        figures, measure, values = _completions(both)
    elif kind == "choices":
        figures, measure, values = _choices(both)
    else:
        figures, measure, values = _texts(both, lambda: _Both(_records(a, list(TOKENS)).take(left), _records(b, list(TOKENS)).take(right)))
    most = [_document(both, identity, values, i) for i in _most_different(values[0], values[1], top)]
    joined_by, matched = "key" if by_key else "row", len(left)
    return PairedRecords(joined_by, matched, len(table_a) - matched, len(table_b) - matched, figures, measure, most, (values[0], values[1]))


def _records(run: Path, columns: list[str]) -> pa.Table:
    batches = list(read_results(run, columns))
    return pa.Table.from_batches(batches) if batches else pa.table({name: pa.nulls(0) for name in columns})


def _has_rewards(run: Path) -> bool:
    """Returns whether the records have rewards. A rollout without reward functions has no such column."""
    first = next(read_results(run), None)
    return first is not None and "reward" in first.schema.names


def _matches(a: pa.Table, b: pa.Table, by: list[str]) -> tuple[Ints, Ints]:
    """Returns indices [M] into ``a``, ascending, and into ``b``, of the records that are equal in the columns ``by``."""
    place = {identity: index for index, identity in enumerate(_identities(b, by))}
    pairs = [(index, place[identity]) for index, identity in enumerate(_identities(a, by)) if identity in place]
    return np.array([i for i, _ in pairs], np.int64), np.array([j for _, j in pairs], np.int64)


def _identities(table: pa.Table, by: list[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in by), strict=True)


# ----------------------------------------------------------------------------------------------------- the three kinds


def _texts(both: _Both, tokens: Callable[[], _Both]) -> tuple[Figures, str, list[Doubles]]:
    """Compares the NLL of documents. ``tokens`` reads the ids and logprobs of the same records, which takes more time.

    They are needed only where the runs scored unlike numbers of tokens.
    """
    a, b = (TextSums(*columns) for columns in zip(*(both.numbers(name) for name in TEXT), strict=True))
    shared = None if np.array_equal(a.tokens, b.tokens) else shared_tokens(_token_pairs(tokens()))
    figures, unit, means = text_figures(a, b, shared)
    return figures, f"NLL (nats per {unit})", list(means)


def _token_pairs(both: _Both) -> Iterator[TokenPair]:
    columns = (run.column(name) for name in TOKENS for run in (both.a, both.b))
    for document in zip(*columns, strict=True):
        ids_a, ids_b, logprobs_a, logprobs_b = (cell.values.to_numpy(zero_copy_only=False) for cell in document)
        yield ids_a, ids_b, logprobs_a, logprobs_b


def _choices(both: _Both) -> tuple[Figures, str, list[Doubles]]:
    """Returns the difference of accuracies with its paired error, and McNemar's table: who is right where the other is not."""
    right_a, right_b = both.numbers("correct")
    labelled = ~np.isnan(right_a) & ~np.isnan(right_b)
    a, b = right_a[labelled], right_b[labelled]
    n = len(a)
    same = np.equal(*both.numbers("prediction"))
    figures: Figures = {
        "documents": n,
        "left_out": int((~labelled).sum()),
        "acc_a": float(a.mean()) if n else None,
        "acc_b": float(b.mean()) if n else None,
        "acc_difference": math.fsum(b - a) / n if n else None,
        "acc_difference_stderr": clustered_error(b - a, np.ones(n, np.int64)),
        "both_right": int(((a == 1) & (b == 1)).sum()),
        "only_a_right": int(((a == 1) & (b == 0)).sum()),
        "only_b_right": int(((a == 0) & (b == 1)).sum()),
        "neither_right": int(((a == 0) & (b == 0)).sum()),
        "same_prediction": int(same.sum()),
    }
    return figures, "logprob of the right choice", [_of_label(both.a), _of_label(both.b)]


def _completions(both: _Both) -> tuple[Figures, str, list[Doubles]]:
    """Counts equal completions, finds where the others first differ, and compares logprobs and rewards.

    Errors are clustered by row, since the samples of one prompt are alike.
    """
    a, b = both.numbers("cumulative_logprob")
    completions = zip(both.a["completion_ids"], both.b["completion_ids"], strict=True)
    positions = np.array([_first_difference(x.values, y.values) for x, y in completions])
    differing = positions[positions >= 0]
    gaps = b - a
    finite = np.isfinite(gaps)
    n = int(finite.sum())
    rows = both.a.column("row").to_numpy()
    figures: Figures = {
        "completions": len(positions),
        "same": len(positions) - len(differing),
        **{name: int(np.percentile(differing, p, method="lower")) if len(differing) else None for name, p in FIRST_DIFFERENCE.items()},
        "logprob_difference": math.fsum(gaps[finite]) / n if n else None,
        "logprob_difference_stderr": error_by_document(gaps[finite], rows[finite]),
    }
    if "reward" in both.a.column_names:
        figures |= reward_figures(*both.numbers("reward"), rows)
    return figures, "logprob of the completion", [a, b]


FIRST_DIFFERENCE = {f"first_difference_{name}": p for name, p in (("min", 0), ("p25", 25), ("median", 50), ("p75", 75), ("max", 100))}


def _first_difference(a: pa.Array, b: pa.Array) -> int:
    """Returns the position of the first token that differs, or the end of the shorter completion; -1 for equal ones."""
    x, y = a.to_numpy(), b.to_numpy()
    n = min(len(x), len(y))
    unlike = np.flatnonzero(x[:n] != y[:n])
    return int(unlike[0]) if len(unlike) else n if len(x) != len(y) else -1


# ------------------------------------------------------------------------------------------------------------ documents


def _of_label(table: pa.Table) -> Doubles:
    pairs = zip(table.column("choice_logprobs").to_pylist(), table.column("label").to_pylist(), strict=True)
    return np.array([math.nan if label is None or choices is None else choices[label] for choices, label in pairs], np.float64)


def _most_different(a: Doubles, b: Doubles, top: int) -> list[int]:
    """Returns the indices of the ``top`` largest |b − a|, leaving out 0. Among equals the first comes first."""
    with np.errstate(invalid="ignore"):
        distances = np.abs(b - a)
    distances[np.isnan(distances)] = 0.0
    order = np.argsort(-distances, kind="stable")[:top]
    return [int(i) for i in order if distances[i] > 0]


def _document(both: _Both, identity: list[str], values: list[Doubles], index: int) -> dict[str, Any]:
    named = {name: both.a.column(name)[index].as_py() for name in identity}
    x, y = float(values[0][index]), float(values[1][index])
    return {**named, "row_b": both.b.column("row")[index].as_py(), "a": x, "b": y, "difference": y - x}
