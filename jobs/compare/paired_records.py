"""The same documents in two runs: which records belong together, and how their figures differ.

Knows the records' columns, and no run beyond them; a comparison of whole runs is ``compare.py``'s. Differences are B − A.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...runner.core.arrays import Bools, Doubles, Ints
from ...runner.store.results import read_results
from ..statistics.standard_errors import clustered_error, through_exp
from .paired_rewards import error_by_document, reward_figures

Figures = dict[str, float | int | str | None]

TEXT = ("sum_logprob", "scored_tokens", "scored_bytes")
TOKENS = ("token_ids", "token_logprobs")
CHOICES = ("choice_logprobs", "prediction", "label", "correct")
COMPLETIONS = ("completion_ids", "cumulative_logprob")


@dataclass(frozen=True, slots=True)
class Paired:
    """What comparing documents one by one gives.

    joined_by: "key" or "row"; matched: records in both runs, only_a and only_b: in one alone. figures: each with its
    standard error behind ``_stderr``. most: of the documents that count, those that differ most, the most different first, by
    ``measure``. values: of A and B [M], what is measured of each matched record; NaN where it does not count.
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
        return _numbers(self.a.column(name)), _numbers(self.b.column(name))


def paired(a: Path, b: Path, kind: str, by_key: bool, top: int) -> Paired:
    """Compares the committed records of two runs of a ``kind``: "generate", "rollout", "choices", or another kind of scoring.

    Joined by the user's keys, or by position; completions by their sample too, and rollouts by their round. ``top``: how many of the
    most different documents to name. Raises RunDirError where a part is missing or lacks a column.
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
    return Paired(joined_by, matched, len(table_a) - matched, len(table_b) - matched, figures, measure, most, (values[0], values[1]))


def _records(run: Path, columns: list[str]) -> pa.Table:
    batches = list(read_results(run, columns))
    return pa.Table.from_batches(batches) if batches else pa.table({name: pa.nulls(0) for name in columns})


def _has_rewards(run: Path) -> bool:
    """Whether the records of a rollout have rewards; those of one without reward functions have no such column."""
    first = next(read_results(run), None)
    return first is not None and "reward" in first.schema.names


def _matches(a: pa.Table, b: pa.Table, by: list[str]) -> tuple[Ints, Ints]:
    """Indices [M] into ``a``, ascending, and into ``b``, of the records that are alike in the columns ``by``."""
    place = {identity: index for index, identity in enumerate(_identities(b, by))}
    pairs = [(index, place[identity]) for index, identity in enumerate(_identities(a, by)) if identity in place]
    return np.array([i for i, _ in pairs], np.int64), np.array([j for _, j in pairs], np.int64)


def _identities(table: pa.Table, by: list[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in by), strict=True)


# ----------------------------------------------------------------------------------------------------- the three kinds


def _texts(both: _Both, tokens: Callable[[], _Both]) -> tuple[Figures, str, list[Doubles]]:
    """The difference of the mean NLL, its error clustered by document, and the ratio of perplexities that follows.

    The mean is over tokens where both runs scored as many in each document. Else ``tokens``, the ids and logprobs of the
    same records, say which documents have the same tokens: where most have, the mean is over the tokens that both runs
    scored, else (two tokenizers) over the bytes that they scored.
    """
    sides = [_Sums(*both_of) for both_of in zip(*(both.numbers(name) for name in TEXT), strict=True)]
    some = (sides[0].tokens > 0) & (sides[1].tokens > 0)
    shared = None if np.array_equal(sides[0].tokens, sides[1].tokens) else _shared(tokens())
    if shared is not None and 2 * int((shared.same & some).sum()) <= int(some.sum()):
        counts, same, sums = sides[0].bytes, sides[0].bytes == sides[1].bytes, [side.sums for side in sides]
        unit = "byte"
    elif shared is not None:
        counts, same, sums = shared.counts, shared.same, shared.sums
        unit = "token"
    else:
        counts, same, sums = sides[0].tokens, np.ones(len(some), np.bool_), [side.sums for side in sides]
        unit = "token"
    chance = np.isfinite(sums[0]) & np.isfinite(sums[1])
    some &= ~same | (counts > 0)
    fit = some & same & chance
    figures: Figures = {
        "documents": int(fit.sum()),
        "left_out": int((~fit).sum()),
        "left_out_nothing_scored": int((~some).sum()),
        f"left_out_unlike_{unit}s": int((some & ~same).sum()),
        "left_out_without_a_chance": int((some & same & ~chance).sum()),
        "unit": unit,
    }
    if shared is not None:
        figures["unlike_tokens"] = int((some & ~shared.same).sum())
    if unit == "token" and shared is not None:
        figures |= {f"tokens_only_{name}": int((side.tokens - counts)[fit].sum()) for name, side in zip("ab", sides, strict=True)}
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [np.where(fit, -each / counts, math.nan) for each in sums]
    return figures | _difference(sums, counts, fit, unit), f"NLL (nats per {unit})", means


def _difference(sums: Sequence[Doubles], counts: Doubles, fit: Bools, unit: str) -> Figures:
    """The figures of the documents that ``fit``: sums of logprobs of both runs over ``counts`` tokens or bytes each."""
    gaps, sizes = (sums[0] - sums[1])[fit], counts[fit].astype(np.int64)
    total = int(sizes.sum())
    difference, error = math.fsum(gaps) / total if total else None, clustered_error(gaps, sizes)
    figures: Figures = {"nll_difference": difference, "nll_difference_stderr": error}
    if unit == "token":
        ratio = None if difference is None else math.exp(min(difference, 700.0))
        figures |= {"perplexity_ratio": ratio, "perplexity_ratio_stderr": through_exp(ratio, error)}
    return figures


@dataclass(frozen=True, slots=True)
class _Sums:
    """Of each document in one run [M]: the sum of its logprobs (NaN: none), and how many tokens and bytes were scored."""

    sums: Doubles
    tokens: Doubles
    bytes: Doubles


@dataclass(frozen=True, slots=True)
class _Shared:
    """Of each document [M]: whether its tokens are the same in both runs, how many both scored, and their sums in A and B."""

    same: Bools
    counts: Doubles
    sums: list[Doubles]


def _shared(both: _Both) -> _Shared:
    """What both runs scored of the same tokens.

    A, behind a BOS    <s>  The  king  is       logprobs  –  -7  -5  -1
    B, without              The  king  is                 –  -4  -1      both scored: king, is
    """
    columns = (side.column(name) for name in TOKENS for side in (both.a, both.b))
    lines = [_of_both(*(item.values.to_numpy(zero_copy_only=False) for item in items)) for items in zip(*columns, strict=True)]
    values = np.array(lines, np.float64).reshape(-1, 4)
    return _Shared(values[:, 0] == 1, values[:, 1], [values[:, 2], values[:, 3]])


def _of_both(ids_a: Ints, ids_b: Ints, logprobs_a: Doubles, logprobs_b: Doubles) -> tuple[bool, int, float, float]:
    """Of one document: whether the tokens are the same but for one in front, how many both scored, and the sums of those."""
    n = min(len(ids_a), len(ids_b))
    if abs(len(ids_a) - len(ids_b)) > 1 or not np.array_equal(ids_a[len(ids_a) - n :], ids_b[len(ids_b) - n :]):
        return False, 0, math.nan, math.nan
    a, b = (np.asarray(each, np.float64)[len(each) - n :] for each in (logprobs_a, logprobs_b))
    there = ~np.isnan(a) & ~np.isnan(b)
    return True, int(there.sum()), math.fsum(a[there]), math.fsum(b[there])


def _choices(both: _Both) -> tuple[Figures, str, list[Doubles]]:
    """The difference of accuracies with its paired error, and McNemar's table: who is right where the other is not."""
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
    """How many completions are the same, where the others part, and the mean differences of their logprobs and rewards.

    Errors are clustered by row: the samples of one prompt are alike.
    """
    a, b = both.numbers("cumulative_logprob")
    parts = np.array(
        [_first_difference(x.values, y.values) for x, y in zip(both.a["completion_ids"], both.b["completion_ids"], strict=True)]
    )
    apart = parts[parts >= 0]
    gaps = b - a
    fit = np.isfinite(gaps)
    n = int(fit.sum())
    rows = both.a.column("row").to_numpy()
    figures: Figures = {
        "completions": len(parts),
        "same": len(parts) - len(apart),
        **{name: int(np.percentile(apart, p, method="lower")) if len(apart) else None for name, p in FIRST_DIFFERENCE.items()},
        "logprob_difference": math.fsum(gaps[fit]) / n if n else None,
        "logprob_difference_stderr": error_by_document(gaps[fit], rows[fit]),
    }
    if "reward" in both.a.column_names:
        figures |= reward_figures(*both.numbers("reward"), rows)
    return figures, "logprob of the completion", [a, b]


FIRST_DIFFERENCE = {f"first_difference_{name}": p for name, p in (("min", 0), ("p25", 25), ("median", 50), ("p75", 75), ("max", 100))}


def _first_difference(a: pa.Array, b: pa.Array) -> int:
    """The position of the first token in which two completions differ, or where one of them ends; -1 where they are the same."""
    x, y = a.to_numpy(), b.to_numpy()
    n = min(len(x), len(y))
    unlike = np.flatnonzero(x[:n] != y[:n])
    return int(unlike[0]) if len(unlike) else n if len(x) != len(y) else -1


# ------------------------------------------------------------------------------------------------------------ documents


def _numbers(column: pa.ChunkedArray) -> Doubles:
    return pc.fill_null(pc.cast(column, pa.float64()), math.nan).to_numpy()


def _of_label(table: pa.Table) -> Doubles:
    pairs = zip(table.column("choice_logprobs").to_pylist(), table.column("label").to_pylist(), strict=True)
    return np.array([math.nan if label is None or choices is None else choices[label] for choices, label in pairs], np.float64)


def _most_different(a: Doubles, b: Doubles, top: int) -> list[int]:
    """The ``top`` indices of the greatest |b − a|, that is not 0; of those alike the first comes first."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(b - a)
    apart[np.isnan(apart)] = 0.0
    order = np.argsort(-apart, kind="stable")[:top]
    return [int(i) for i in order if apart[i] > 0]


def _document(both: _Both, identity: list[str], values: list[Doubles], index: int) -> dict[str, Any]:
    named = {name: both.a.column(name)[index].as_py() for name in identity}
    x, y = float(values[0][index]), float(values[1][index])
    return {**named, "row_b": both.b.column("row")[index].as_py(), "a": x, "b": y, "difference": y - x}
