"""Adds up the records of a scoring job, a batch at a time and each record once, for each group.

What comes out depends neither on the order of records nor on their batches. Memory grows with the number of groups, some kilobytes each,
and not with that of records. Only with a reference model 4 bytes a token stay, as percentiles need each token's KL divergence: 100 million
tokens are 0.4 GB, twice that while they are sorted.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...configs.score import ScoreConfig
from ...runner.core.arrays import Doubles, Floats, Ints
from ...runner.store.results import read_results
from .mean_sums import MeanSums

_TOKENS = ["token_logprobs", "sum_logprob", "scored_tokens", "bytes", "scored_bytes", "words", "truncated"]
_DIVERGENCES = ["kls", "delta_ps", "agreements", "reference_logprobs"]
_CHOICES = ["choice_logprobs", "choice_token_logprobs", "choice_tokens", "choice_bytes", "choice_chars", "label", "correct", "truncated"]


class ScoreSums:
    """The sums of records. A group is its place in ``groups``, which stand in order of first appearance; None means all records.

    Without groups every record counts as of the group 0, and ``groups`` is empty. means: by the name of what is averaged over tokens.
    """

    def __init__(self) -> None:
        self.groups: list[str | None] = []
        self.means: dict[str, MeanSums] = {}
        self._numbers: dict[str | None, int] = {}
        self._counts: dict[str, Ints] = {}
        self._kls: list[array[float]] = []

    def numbers(self, groups: Sequence[str | None]) -> Ints:
        """Returns the places of groups in ``groups``, which takes those that are new."""
        found = np.array([self._numbers.setdefault(group, len(self._numbers)) for group in groups], np.int64)
        self.groups += list(self._numbers)[len(self.groups) :]
        return found

    def count(self, groups: Ints, **numbers: NDArray[Any]) -> None:
        """Adds numbers [D] of documents of ``groups`` [D]: integers below 2^31, or bools."""
        for name, values in numbers.items():
            held = self._counts.get(name, np.zeros(0, np.int64))
            new = np.bincount(groups, weights=values, minlength=len(held)).astype(np.int64)
            new[: len(held)] += held
            self._counts[name] = new

    def counted(self, name: str, group: int | None) -> int:
        """Returns a count; 0 where nothing was counted."""
        counts = self._counts.get(name, np.zeros(0, np.int64))
        if group is None:
            return int(counts.sum())
        return int(counts[group]) if group < len(counts) else 0

    def mean(self, name: str) -> MeanSums:
        """Returns the sums behind a mean, empty at first."""
        return self.means.setdefault(name, MeanSums())

    def keep_kls(self, groups: Ints, counts: Ints, kls: Floats) -> None:
        """Keeps the KL divergences of tokens [Σ counts] of documents of ``groups`` [D]."""
        self._kls += [array("f") for _ in range(max(groups.tolist(), default=-1) + 1 - len(self._kls))]
        for group, count, end in zip(groups.tolist(), counts.tolist(), np.cumsum(counts).tolist(), strict=True):
            self._kls[group].frombytes(kls[end - count : end].tobytes())

    def kls(self, group: int | None) -> Floats:
        """Returns a copy of the KL divergences kept, of a group or of all."""
        held = self._kls if group is None else self._kls[group : group + 1]
        return np.concatenate([np.zeros(0, np.float32), *(np.frombuffer(kls, np.float32) for kls in held)])


def compared(config: ScoreConfig) -> bool:
    """Returns True where records hold figures of a reference model too."""
    return config.reference is not None and config.score.kind != "choices"


def collect_scores(run: Path, config: ScoreConfig) -> ScoreSums:
    """Returns the sums of all records in a run directory. Raises RunDirError where a part is missing or lacks a column."""
    columns, add = _layout(config.score.kind, compared(config))
    grouped = config.score.group_by is not None
    sums = ScoreSums()
    for batch in read_results(run, [*columns, *(["group"] if grouped else [])]):
        groups = sums.numbers(batch.column("group").to_pylist()) if grouped else np.zeros(batch.num_rows, np.int64)
        add(sums, batch, groups)
    return sums


def _layout(kind: str, against: bool) -> tuple[list[str], Callable[[ScoreSums, pa.RecordBatch, Ints], None]]:
    """Returns the columns to read, and the function that adds a batch of them."""
    if kind == "choices":
        return _CHOICES, _add_choices
    columns = [*_TOKENS, *(["is_greedy"] if kind == "completion" else [])]
    return ([*columns, *_DIVERGENCES], _add_compared) if against else (columns, _add_tokens)


def _add_tokens(sums: ScoreSums, batch: pa.RecordBatch, groups: Ints) -> None:
    logprobs, counts = _ragged(batch.column("token_logprobs"))
    scored, truncated, size = counts > 0, _plain(batch, "truncated"), _plain(batch, "scored_bytes")
    sums.mean("logprob").add(groups, _plain(batch, "sum_logprob"), counts, logprobs)
    sums.count(
        groups,
        documents=np.ones(len(counts)),
        nothing_to_score=~scored,
        truncated=truncated,
        minus_infinity=_by_document(np.isneginf(logprobs), counts),
        scored_tokens=counts,
        words=_plain(batch, "words") * scored,
        bytes=size * scored,
        cut_bytes=~(truncated | (size >= _plain(batch, "bytes"))),
    )
    if "is_greedy" in batch.schema.names:
        sums.count(groups, greedy=_plain(batch, "is_greedy") & scored)


def _add_compared(sums: ScoreSums, batch: pa.RecordBatch, groups: Ints) -> None:
    _add_tokens(sums, batch, groups)
    logprobs, counts = _ragged(batch.column("token_logprobs"))
    references, kls, delta_ps = (_ragged(batch.column(name))[0] for name in ("reference_logprobs", "kls", "delta_ps"))
    sums.mean("kl").add(groups, _sums(kls, counts), counts, kls)
    sums.mean("delta_p").add(groups, _sums(delta_ps, counts), counts)
    sums.mean("delta_p_power").add(groups, _sums(delta_ps**2, counts), counts)
    sums.mean("agreement").add(groups, _by_document(_flat(batch.column("agreements")), counts).astype(np.float64), counts)
    reference_sums = _sums(references, counts)
    sums.mean("reference").add(groups, reference_sums, counts)
    with np.errstate(invalid="ignore"):  # no chance under either model: no gap that is a number
        gaps = reference_sums - _plain(batch, "sum_logprob")
        sums.mean("gap").add(groups, gaps, counts, references - logprobs)
    sums.keep_kls(groups, counts, _flat(batch.column("kls")))


def _add_choices(sums: ScoreSums, batch: pa.RecordBatch, groups: Ints) -> None:
    labelled = ~batch.column("label").is_null().to_numpy(zero_copy_only=False)
    logprobs, counts = _ragged(batch.column("choice_token_logprobs").flatten())
    choices = _lengths(batch.column("choice_token_logprobs"))
    sums.count(
        groups,
        rows=np.ones(batch.num_rows),
        labelled=labelled,
        truncated=_plain(batch, "truncated"),
        scored_tokens=_by_document(counts, choices),
        minus_infinity=_by_document(_by_document(np.isneginf(logprobs), counts), choices),
        acc=_plain(batch, "correct") & labelled,
    )
    labels = batch.column("label").to_pylist()
    totals = batch.column("choice_logprobs").to_pylist()
    for name, lengths in (("acc_norm", "choice_chars"), ("acc_bytes", "choice_bytes"), ("acc_tokens", "choice_tokens")):
        picked = map(_best, totals, batch.column(lengths).to_pylist())
        hits = [label is not None and choice == label for label, choice in zip(labels, picked, strict=True)]
        sums.count(groups, **{name: np.array(hits, np.bool_)})


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
