"""Reads the committed records of a run once: counts distributions in bins and picks records worth a look.

Reads numbers only, batch by batch. Memory does not grow with the run, but for 32 bytes a group of a rollout. Knows no charts.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...runner.core.arrays import Doubles, Ints
from ...runner.store.results import read_results
from ..statistics.rollout_groups import GROUP_COLUMNS
from ..statistics.standard_errors import float_column
from .bins import Bins
from .class_figures import CLASS_COLUMNS, ClassFigures, is_classification
from .lowest import Lowest, hash_uniforms
from .rollout_figures import RolloutFigures
from .vector_figures import COLUMN, VECTOR_COLUMNS, VectorFigures

SPAN = 8  # tokens of a span
_PARTS = ("reasoning_tokens", "tool_calls", "tool_error")
_GENERATED = ("prompt_tokens", "completion_tokens", "finish_reason", "cumulative_logprob", "logprobs", "grammar_complete")
_SCORED = ("token_logprobs", "sum_logprob", "scored_tokens", "choice_logprobs", "label", "correct")
_LONGEST = 1 << 20  # tokens: a longer text counts as this long
_SORTS = {"random": 40, "least likely": 16, "most likely": 8, "longest": 8, "wrong and sure": 12, "right and unsure": 8}


@dataclass(slots=True)
class RecordPass:
    """The figures of one pass.

    lengths: heading -> lengths in tokens. nll: of each token, in nats. documents: mean NLL a token of each record.
    finish: finish reason -> records. calls: what became of a completion's calls -> records. accuracy: records that are right, wrong, or
    without a label. sorts: name -> records to look at. spans: records with the least likely spans, and the token where each begins.
    grammar: records that are a whole text of their grammar, or are not. rollout: for a rollout with rewards, else None.
    classes: for a classification, else None. vectors: for an embedding, else None.
    """

    columns: list[str]
    records: int = 0
    lengths: dict[str, Bins] = field(default_factory=dict[str, Bins])
    nll: Bins = field(default_factory=lambda: Bins(0.0, 0.05, 100.0, distinct=None))
    documents: Bins = field(default_factory=lambda: Bins(0.0, 0.01, 100.0, distinct=None))
    finish: Counter[str] = field(default_factory=Counter[str])
    calls: Counter[str] = field(default_factory=Counter[str])
    grammar: Counter[str] = field(default_factory=Counter[str])
    accuracy: Counter[str] = field(default_factory=Counter[str])
    sorts: dict[str, Lowest] = field(default_factory=dict[str, Lowest])
    spans: Lowest = field(default_factory=lambda: Lowest(12))
    rollout: RolloutFigures | None = None
    classes: ClassFigures | None = None
    vectors: VectorFigures | None = None


def pass_over_records(run: Path) -> RecordPass | None:
    """Reads the committed records of the run directory ``run``. Returns None where there are none.

    Raises RunDirError where a committed part is missing or damaged.
    """
    first = next(read_results(run), None)
    if first is None:
        return None
    found = RecordPass(first.schema.names)
    wanted = [name for name in found.columns if name in {*GROUP_COLUMNS, *_GENERATED, *_PARTS, *_SCORED, *CLASS_COLUMNS, *VECTOR_COLUMNS}]
    if "reward" in wanted:
        found.rollout = RolloutFigures()
    if COLUMN in wanted:
        found.vectors = VectorFigures()
    if is_classification(wanted):
        found.classes = ClassFigures()
    for batch in read_results(run, wanted):
        if batch.num_rows:
            _add(found, batch)
    if found.rollout is not None:
        found.rollout.finish()
    return found


def identities(batch: pa.RecordBatch) -> Ints:
    """Returns round, row and sample [N, 3] of each record; 0 where its job has no such column."""
    names = ("round", "row", "sample")
    present = set(batch.schema.names)
    columns = [_ints(batch, name) if name in present else np.zeros(batch.num_rows, np.int64) for name in names]
    return np.stack(columns, axis=1)


def _add(found: RecordPass, batch: pa.RecordBatch) -> None:
    records, names = identities(batch), set(batch.schema.names)
    found.records += len(records)
    chance = hash_uniforms(records)
    _pick(found, "random", chance, records)
    for heading in ("prompt", "completion", "reasoning", "scored"):
        if (name := f"{heading}_tokens") in names:
            lengths = _ints(batch, name)
            found.lengths.setdefault(heading, Bins(0.0, 1.0, _LONGEST, whole=True)).add(lengths)
            if heading in ("completion", "scored"):
                _pick(found, "longest", -lengths.astype(np.float64), records)
    if "finish_reason" in names:
        reasons = batch.column("finish_reason").dictionary_encode()
        for code, reason in enumerate(reasons.dictionary.to_pylist()):
            mine = reasons.indices.to_numpy() == code
            found.finish[reason] += int(mine.sum())
            found.sorts.setdefault(f"finish: {reason}", Lowest(6)).add(chance[mine], records[mine])
    if "tool_calls" in names:
        _add_calls(found, batch)
    if "grammar_complete" in names:
        for whole, name in ((True, "whole"), (False, "not whole")):
            found.grammar[name] += int((batch.column("grammar_complete").to_numpy(zero_copy_only=False) == whole).sum())
    _add_logprobs(found, batch, records, names)
    if "choice_logprobs" in names:
        _add_choices(found, batch, records)
    if found.rollout is not None:
        found.rollout.add(batch)
    if found.vectors is not None:
        found.vectors.add(batch)
        lengths = _ints(batch, "tokens")
        found.lengths.setdefault("input", Bins(0.0, 1.0, _LONGEST, whole=True)).add(lengths)
        _pick(found, "longest", -lengths.astype(np.float64), records)
    if found.classes is not None:
        _add_classes(found, found.classes, batch, records)


def _add_classes(found: RecordPass, classes: ClassFigures, batch: pa.RecordBatch, records: Ints) -> None:
    classes.add(batch, records, found.sorts)
    found.lengths.setdefault("input", Bins(0.0, 1.0, _LONGEST, whole=True)).add(_ints(batch, "tokens"))
    if "correct" in batch.schema.names:
        _count_right(found, _doubles(batch, "correct"))


def _add_calls(found: RecordPass, batch: pa.RecordBatch) -> None:
    """Counts the calls of each completion that had tools, and what was wrong with them."""
    for calls, error in zip(batch.column("tool_calls").to_pylist(), batch.column("tool_error").to_pylist(), strict=True):
        if calls is not None:
            found.calls["no call" if not calls else "1 call" if len(calls) == 1 else f"{len(calls)} calls"] += 1
        if error is not None:
            found.calls[error.partition(":")[0]] += 1


def _add_logprobs(found: RecordPass, batch: pa.RecordBatch, records: Ints, names: set[str]) -> None:
    sums, counts = ("sum_logprob", "scored_tokens") if "sum_logprob" in names else ("cumulative_logprob", "completion_tokens")
    if sums in names:
        with np.errstate(divide="ignore", invalid="ignore"):
            means = _doubles(batch, sums) / _doubles(batch, counts)
        found.documents.add(-means[~np.isnan(means)])
        _pick(found, "least likely", means, records)
        _pick(found, "most likely", -means, records)
    if (name := next((name for name in ("token_logprobs", "logprobs") if name in names), None)) is not None:
        column = batch.column(name)
        flat = column.flatten().to_numpy(zero_copy_only=False)
        found.nll.add(-flat[~np.isnan(flat)])
        lengths = np.diff(column.offsets.to_numpy()).astype(np.int64)
        _add_spans(found.spans, flat, lengths, records)


def _add_spans(spans: Lowest, flat: NDArray[np.float32], lengths: Ints, records: Ints) -> None:
    """Adds the least likely span of SPAN tokens of each record, if its mean logprob is among the lowest.

    flat: the logprobs of all records in order; lengths: [N], how many each record has. Spans with a null or −∞ do not count.
    """
    if len(flat) < SPAN:
        return
    sums = np.cumsum(np.concatenate([[0.0], np.where(np.isfinite(flat), flat, 0.0)]), dtype=np.float64)
    holes = np.cumsum(np.concatenate([[0], ~np.isfinite(flat)]))
    means = (sums[SPAN:] - sums[:-SPAN]) / SPAN
    owner = np.repeat(np.arange(len(lengths)), lengths)
    means[(holes[SPAN:] != holes[:-SPAN]) | (owner[SPAN - 1 :] != owner[: len(means)])] = np.nan
    starts = np.cumsum(lengths) - lengths
    room = np.flatnonzero(lengths >= SPAN)  # each has a span that begins at its start
    if not len(room):
        return
    lowest = np.fmin.reduceat(means, starts[room])
    if len(spans.scores) == spans.keep:
        better = lowest < spans.scores[-1]
        room, lowest = room[better], lowest[better]
    for index, value in sorted(zip(room.tolist(), lowest.tolist(), strict=True), key=lambda each: each[1])[: spans.keep]:
        inside = means[starts[index] : starts[index] + lengths[index] - SPAN + 1]
        if not np.isnan(value):
            spans.add(np.array([value]), records[[index]], np.array([int(np.nanargmin(inside))]))


def _add_choices(found: RecordPass, batch: pa.RecordBatch, records: Ints) -> None:
    right = _doubles(batch, "correct")
    _count_right(found, right)
    margins = np.array([_margin(values) for values in batch.column("choice_logprobs").to_pylist()], np.float64)
    _pick(found, "wrong and sure", np.where(right == 0, -margins, np.nan), records)
    _pick(found, "right and unsure", np.where(right == 1, margins, np.nan), records)


def _count_right(found: RecordPass, right: Doubles) -> None:
    found.accuracy += Counter({"right": int((right == 1).sum()), "wrong": int((right == 0).sum()), "no label": int(np.isnan(right).sum())})


def _margin(logprobs: list[float] | None) -> float:
    """Returns by how much the likeliest choice is ahead of the next one."""
    ordered = sorted(logprobs or [], reverse=True)
    return ordered[0] - ordered[1] if len(ordered) > 1 and ordered[1] != -np.inf else np.nan


def _pick(found: RecordPass, sort: str, scores: Doubles, records: Ints) -> None:
    found.sorts.setdefault(sort, Lowest(_SORTS[sort])).add(scores, records)


def _ints(batch: pa.RecordBatch, name: str) -> Ints:
    return pc.fill_null(batch.column(name), 0).to_numpy().astype(np.int64)


def _doubles(batch: pa.RecordBatch, name: str) -> Doubles:
    return float_column(batch.column(name))
