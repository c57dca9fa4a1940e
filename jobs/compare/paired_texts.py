"""Compares the NLL of the same documents in two runs: the difference of the means, and the ratio of perplexities.

Two runs may score different tokens of a document. Then the mean is over tokens or bytes that both scored.
Knows arrays with a value for each of M documents; no runs and no files. Differences are B − A.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...runner.core.arrays import Bools, Doubles, Ints
from ..statistics.standard_errors import clustered_error, through_exp

TextFigures = dict[str, float | int | str | None]
TokenPair = tuple[Ints, Ints, Doubles, Doubles]  # of one document: the ids in A and in B, the logprobs in A and in B

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True)
class TextSums:
    """One run's documents: the sum of logprobs (NaN for none), scored tokens and scored bytes. Each is [M]."""

    sums: Doubles
    tokens: Doubles
    bytes: Doubles


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """Scores of both runs for the same tokens. same: [M], the documents that have the same tokens in both runs.

    counts: [M], the tokens that both scored. sums: of A and of B [M], the sums of their logprobs.
    """

    same: Bools
    counts: Doubles
    sums: tuple[Doubles, Doubles]


@dataclass(frozen=True, slots=True)
class _Basis:
    """The unit and the sums of the mean. unit: token or byte; counts: [M], how many; sums: of A and of B [M], of the logprobs.

    same: [M], the documents in which both runs have the same units.
    """

    unit: str
    counts: Doubles
    same: Bools
    sums: tuple[Doubles, Doubles]


def shared_tokens(documents: Iterable[TokenPair]) -> SharedTokens:
    """Finds what both runs scored of the same tokens. A document's tokens are the same where one run has one more in front.

    A, behind a BOS    <s>  The  king  is       logprobs  –  -7  -5  -1
    B, without              The  king  is                 –  -4  -1      both scored: king, is
    """
    values = np.array([_shared_tokens_of(*document) for document in documents], np.float64).reshape(-1, 4)
    return SharedTokens(values[:, 0] == 1, values[:, 1], (values[:, 2], values[:, 3]))


def _shared_tokens_of(ids_a: Ints, ids_b: Ints, logprobs_a: Doubles, logprobs_b: Doubles) -> tuple[bool, int, float, float]:
    """Returns whether a document's tokens are the same, how many both runs scored, and the sums of their logprobs."""
    n = min(len(ids_a), len(ids_b))
    if abs(len(ids_a) - len(ids_b)) > 1 or not np.array_equal(ids_a[len(ids_a) - n :], ids_b[len(ids_b) - n :]):
        return False, 0, math.nan, math.nan
    a, b = (np.asarray(logprobs, np.float64)[len(logprobs) - n :] for logprobs in (logprobs_a, logprobs_b))
    both = ~np.isnan(a) & ~np.isnan(b)
    return True, int(both.sum()), math.fsum(a[both]), math.fsum(b[both])


def text_figures(a: TextSums, b: TextSums, shared: SharedTokens | None) -> tuple[TextFigures, str, tuple[Doubles, Doubles]]:
    """Returns the figures, the unit of the mean (token or byte), and the mean NLL of A and of B [M], NaN where it does not count.

    shared: None where both runs scored equally many tokens in each document. The error is clustered by document.
    """
    scored = (a.tokens > 0) & (b.tokens > 0)
    basis = _basis(a, b, shared, scored)
    scored &= ~basis.same | (basis.counts > 0)
    possible = np.isfinite(basis.sums[0]) & np.isfinite(basis.sums[1])
    compared = scored & basis.same & possible
    figures: TextFigures = {
        "documents": int(compared.sum()),
        "left_out": int((~compared).sum()),
        "left_out_nothing_scored": int((~scored).sum()),
        f"left_out_unlike_{basis.unit}s": int((scored & ~basis.same).sum()),
        "left_out_without_a_chance": int((scored & basis.same & ~possible).sum()),
        "unit": basis.unit,
    }
    if shared is not None:
        figures["unlike_tokens"] = int((scored & ~shared.same).sum())
        if basis.unit == "token":
            figures |= {f"tokens_only_{name}": int((run.tokens - shared.counts)[compared].sum()) for name, run in (("a", a), ("b", b))}
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_a, mean_b = (np.where(compared, -sums / basis.counts, math.nan) for sums in basis.sums)
    return figures | _difference(basis, compared), basis.unit, (mean_a, mean_b)


def _basis(a: TextSums, b: TextSums, shared: SharedTokens | None, scored: Bools) -> _Basis:
    """Chooses what the mean is over. scored: [M], the documents that have scored tokens in both runs.

    All tokens, where both runs scored equally many. Else the tokens that both scored, where most documents have the same ones.
    Else (two tokenizers) the bytes that they scored.
    """
    if shared is None:
        return _Basis("token", a.tokens, np.ones(len(scored), np.bool_), (a.sums, b.sums))
    if 2 * int((shared.same & scored).sum()) > int(scored.sum()):
        return _Basis("token", shared.counts, shared.same, shared.sums)
    return _Basis("byte", a.bytes, a.bytes == b.bytes, (a.sums, b.sums))


def _difference(basis: _Basis, compared: Bools) -> TextFigures:
    """Returns the difference of the mean NLL over the ``compared`` documents [M]; over tokens the ratio of perplexities too."""
    gaps, sizes = (basis.sums[0] - basis.sums[1])[compared], basis.counts[compared].astype(np.int64)
    total = int(sizes.sum())
    difference, error = math.fsum(gaps) / total if total else None, clustered_error(gaps, sizes)
    figures: TextFigures = {"nll_difference": difference, "nll_difference_stderr": error}
    if basis.unit == "token":
        ratio = None if difference is None else math.exp(min(difference, _LARGEST_EXPONENT))
        figures |= {"perplexity_ratio": ratio, "perplexity_ratio_stderr": through_exp(ratio, error)}
    return figures
