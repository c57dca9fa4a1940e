"""Turns sums and counts into figures with their standard errors. Never takes a mean of means.

Sums are float64 over the stored float32. Where nothing is scored, figures are None, never 0; so is an error that cannot be
estimated. Knows neither files nor records: D documents are arrays of their sums.
"""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...runner.core.arrays import Doubles, Ints


def perplexity(sum_logprob: float, tokens: int) -> float | None:
    """Returns ``exp(-Σ logprob / tokens)`` over a corpus: None where no token was scored, infinity where one had no chance.

    With words or UTF-8 bytes in place of tokens it is word or byte perplexity.
    """
    if tokens == 0:
        return None
    mean = -sum_logprob / tokens
    return math.inf if mean > math.log(np.finfo(np.float64).max) else math.exp(mean)


def bits_per_byte(sum_logprob: float, size: int) -> float | None:
    """Returns ``-Σ logprob / (bytes · ln 2)``, as lm-eval's bits_per_byte; None without bytes."""
    return (0.0 - sum_logprob) / (size * math.log(2)) if size else None


def clustered_error(sums: Doubles, counts: Ints) -> float | None:
    """Returns the standard error of the mean ``m = Σ sums / Σ counts`` of values, where each document is a cluster.

    ``sqrt(D/(D−1) · Σ_d (s_d − m·n_d)²) / Σ n_d``, the error of a ratio estimate (Cochran, Sampling Techniques, 1977, chapter 2).
    sums: [D], each document's Σ of values; counts: [D], how many. Documents without values do not count among the D. None for
    fewer than two documents, and where a sum is infinite.

    For differences between two models it is the paired error: Var a + Var b − 2 Cov(a, b), as llama.cpp's ``--kl-divergence`` takes
    it over tokens for ln(PPL(Q)/PPL(base)).
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    if len(sums) < 2 or not np.isfinite(sums).all():
        return None
    total = int(counts.sum())
    squares = math.fsum((sums - math.fsum(sums) / total * counts) ** 2)
    return math.sqrt(len(sums) / (len(sums) - 1) * squares) / total


def through_exp(value: float | None, error: float | None) -> float | None:
    """Returns the standard error of ``value = exp(x)`` where x has ``error``: value · error (delta method). None without either."""
    return None if value is None or error is None or math.isinf(value) else value * error


def share_error(hits: int, of: int) -> float | None:
    """Returns the standard error of the share ``hits / of``: the standard deviation of these ones and zeros over ``sqrt(of)``.

    It is lm-eval's mean_stderr, ``sqrt(p · (1 − p) / (n − 1))``; None for fewer than two.
    """
    return math.sqrt(hits / of * (1 - hits / of) / (of - 1)) if of > 1 else None


def percentiles(values: NDArray[np.float32], at: tuple[float, ...]) -> list[float | None]:
    """Sorts ``values`` [N] in place and returns the percentiles ``at`` (0 to 100), interpolated between neighbours.

    The rank is p/100 · (N − 1), as NumPy's ``linear`` and R's type 7; infinite between a number and infinity. None without values.
    """
    values.sort()
    return [_at_rank(values, p / 100 * (len(values) - 1)) if len(values) else None for p in at]


def _at_rank(values: NDArray[np.float32], rank: float) -> float:
    low, high = float(values[math.floor(rank)]), float(values[math.ceil(rank)])
    return low if low == high else low + (high - low) * (rank - math.floor(rank))


def list_sum(lists: pa.ChunkedArray | pa.Array) -> tuple[float, int]:
    """Returns Σ of all numbers in a column of lists, in float64, and how many there are; nulls are left out."""
    flat = lists.flatten() if isinstance(lists, pa.Array) else pa.chunked_array([c.flatten() for c in lists.chunks], lists.type.value_type)
    values = flat.drop_null().to_numpy()
    return math.fsum(values.astype(np.float64)), len(values)


def float_column(column: pa.ChunkedArray | pa.Array) -> Doubles:
    """Returns a column of numbers as [N] float64, with NaN for null."""
    return pc.fill_null(pc.cast(column, pa.float64()), math.nan).to_numpy()
