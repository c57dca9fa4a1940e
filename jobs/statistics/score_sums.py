"""Reads the records of a scoring job into one line of sums for each document, or of results for each row of choices.

Records are read in input order, a batch at a time; lines do not depend on how records fall into batches. About 50 bytes a document
stay in memory (twice that with a reference model), and 4 bytes a token where percentiles need each token's KL divergence:
100 million tokens are 0.4 GB, twice that while they are sorted.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...configs.score import ScoreConfig
from ...runner.core.arrays import Doubles, Floats, Ints
from ...runner.store.results import read_results

Lines = NDArray[Any]  # of one of the dtypes below

# squares: Σ (x − the document's mean)² over its tokens.
TOKENS = [
    ("group", np.int32),
    ("tokens", np.int32),  # scored
    ("sum_logprob", np.float64),
    ("squares", np.float64),
    ("minus_infinity", np.int32),
    ("words", np.int32),
    ("bytes", np.int64),  # scored
    ("whole", np.bool_),  # all its bytes count, but for a cut at the context's end
    ("truncated", np.bool_),
    ("greedy", np.bool_),
]
DIVERGENCES = [
    ("kl", np.float64),
    ("kl_squares", np.float64),
    ("delta_p", np.float64),
    ("delta_p_power", np.float64),  # Σ Δp²
    ("agreements", np.int32),
    ("reference_sum", np.float64),
    ("gap_squares", np.float64),  # squares of logprob − the reference's
]
CHOICES = [
    ("group", np.int32),
    ("tokens", np.int32),
    ("minus_infinity", np.int32),
    ("truncated", np.bool_),
    ("labelled", np.bool_),
    ("acc", np.bool_),
    ("acc_norm", np.bool_),
    ("acc_bytes", np.bool_),
    ("acc_tokens", np.bool_),
]


@dataclass(slots=True, frozen=True)
class ScoreSums:
    """The sums of D records. groups: the groups' values in order of first appearance.

    kls: [T], the KL divergence of each scored token of all documents, where there is a reference model.
    """

    lines: Lines
    groups: list[str | None]
    kls: Floats | None


def collect_scores(run: Path, config: ScoreConfig) -> ScoreSums:
    """Returns the sums of all records in a run directory. Raises RunDirError where a part is missing or lacks a column."""
    kind, compared = config.score.kind, config.reference is not None and config.score.kind != "choices"
    columns, dtype, lines_of = _layout(kind, compared)
    grouped = config.score.group_by is not None
    codes: dict[str | None, int] = {}
    held, kls = bytearray(), array("f")
    for batch in read_results(run, [*columns, *(["group"] if grouped else [])]):
        lines = np.zeros(batch.num_rows, dtype)
        if grouped:
            lines["group"] = [codes.setdefault(value, len(codes)) for value in batch.column("group").to_pylist()]
        lines_of(batch, lines)
        held += lines.tobytes()
        if compared:
            kls.frombytes(batch.column("kls").flatten().drop_null().to_numpy().tobytes())
    return ScoreSums(np.frombuffer(held, dtype), list(codes), np.frombuffer(kls, np.float32) if compared else None)


def _layout(kind: str, compared: bool) -> tuple[list[str], np.dtype[Any], Callable[[pa.RecordBatch, Lines], None]]:
    """Returns the columns to read, the fields of a line, and the function that fills lines."""
    if kind == "choices":
        counted = ["choice_logprobs", "choice_token_logprobs", "choice_tokens", "choice_bytes", "choice_chars"]
        return [*counted, "label", "correct", "truncated"], np.dtype(CHOICES), _fill_choices
    columns = ["token_logprobs", "sum_logprob", "scored_tokens", "bytes", "scored_bytes", "words", "truncated"]
    columns += ["is_greedy"] if kind == "completion" else []
    if compared:
        return [*columns, "kls", "delta_ps", "agreements", "reference_logprobs"], np.dtype(TOKENS + DIVERGENCES), _fill_compared
    return columns, np.dtype(TOKENS), _fill_tokens


def _fill_tokens(batch: pa.RecordBatch, lines: Lines) -> None:
    logprobs, counts = _ragged(batch.column("token_logprobs"))
    for name in ("words", "truncated"):
        lines[name] = _plain(batch, name)
    lines["tokens"] = counts
    lines["sum_logprob"] = sums = _plain(batch, "sum_logprob")
    lines["squares"] = _squares(logprobs, sums, counts)
    lines["minus_infinity"] = _by_document(np.isneginf(logprobs), counts)
    lines["bytes"] = _plain(batch, "scored_bytes")
    lines["whole"] = lines["truncated"] | (lines["bytes"] >= _plain(batch, "bytes"))
    if "is_greedy" in batch.schema.names:
        lines["greedy"] = _plain(batch, "is_greedy") & (counts > 0)


def _fill_compared(batch: pa.RecordBatch, lines: Lines) -> None:
    _fill_tokens(batch, lines)
    logprobs, counts = _ragged(batch.column("token_logprobs"))
    references, kls, delta_ps = (_ragged(batch.column(name))[0] for name in ("reference_logprobs", "kls", "delta_ps"))
    lines["kl"] = _sums(kls, counts)
    lines["kl_squares"] = _squares(kls, lines["kl"], counts)
    lines["delta_p"] = _sums(delta_ps, counts)
    lines["delta_p_power"] = _sums(delta_ps**2, counts)
    lines["agreements"] = _by_document(_flat(batch.column("agreements")), counts)
    lines["reference_sum"] = _sums(references, counts)
    with np.errstate(invalid="ignore"):  # no chance under either model: no gap that is a number
        lines["gap_squares"] = _squares(logprobs - references, lines["sum_logprob"] - lines["reference_sum"], counts)


def _fill_choices(batch: pa.RecordBatch, lines: Lines) -> None:
    lines["truncated"] = _plain(batch, "truncated")
    lines["labelled"] = labelled = ~batch.column("label").is_null().to_numpy(zero_copy_only=False)
    lines["acc"] = _plain(batch, "correct") & labelled
    by_choice = batch.column("choice_token_logprobs").flatten()
    logprobs, counts = _ragged(by_choice)
    choices = _lengths(batch.column("choice_token_logprobs"))
    lines["tokens"] = _by_document(counts, choices)
    lines["minus_infinity"] = _by_document(_by_document(np.isneginf(logprobs), counts), choices)
    labels = batch.column("label").to_pylist()
    sums = batch.column("choice_logprobs").to_pylist()
    for name, lengths in (("acc_norm", "choice_chars"), ("acc_bytes", "choice_bytes"), ("acc_tokens", "choice_tokens")):
        picked = map(_best, sums, batch.column(lengths).to_pylist())
        lines[name] = [label is not None and choice == label for label, choice in zip(labels, picked, strict=True)]


def _best(sums: Sequence[float], lengths: Sequence[int]) -> int:
    """Returns the choice with the largest logprob for its length, the first of equals; never one without length."""
    means = [total / length if length else -math.inf for total, length in zip(sums, lengths, strict=True)]
    return max(range(len(means)), key=means.__getitem__)


def _plain(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """Returns a column of numbers or bools, with 0 or False for null."""
    column = batch.column(name)
    return pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)


def _ragged(lists: pa.Array) -> tuple[Doubles, Ints]:
    """Returns the numbers of all lists in order, without nulls, as float64 [T], and how many each list has [D]."""
    flat = lists.flatten()
    return _flat(lists).astype(np.float64), _by_document(flat.is_valid().to_numpy(zero_copy_only=False), _lengths(lists))


def _flat(lists: pa.Array) -> NDArray[Any]:
    return lists.flatten().drop_null().to_numpy(zero_copy_only=False)


def _lengths(lists: pa.Array) -> Ints:
    return pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _by_document(values: NDArray[Any], counts: Ints) -> Ints:
    """Returns for each document the sum of its ``counts`` small integers or bools."""
    ends = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])[np.cumsum(counts)]
    return np.diff(ends, prepend=0)


def _sums(values: Doubles, counts: Ints) -> Doubles:
    """Returns for each document the sum of its ``counts`` values, exactly rounded."""
    every, ends = values.tolist(), np.cumsum(counts).tolist()
    return np.array([math.fsum(every[end - count : end]) for end, count in zip(ends, counts.tolist(), strict=True)], np.float64)


def _squares(values: Doubles, sums: Doubles, counts: Ints) -> Doubles:
    """Returns for each document Σ (x − mean)² over its ``counts`` values with the sums ``sums``; NaN where one is infinite."""
    owner = np.repeat(np.arange(len(counts)), counts)
    with np.errstate(invalid="ignore"):
        gaps = values - (sums / np.maximum(counts, 1))[owner]
    return np.asarray(np.bincount(owner, weights=gaps**2, minlength=len(counts)), np.float64)
