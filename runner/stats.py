"""Sums and counts to the figures that are reported. Sums travel; a mean of means is never taken.

Sums are float64 over the stored float32. Nothing to score is None, never 0.
"""

import math

import numpy as np
import pyarrow as pa


def perplexity(sum_logprob: float, tokens: int) -> float | None:
    """``exp(-Σ logprob / tokens)`` over a corpus; None where no token was scored, infinity where one had no chance."""
    if tokens == 0:
        return None
    mean = -sum_logprob / tokens
    return math.inf if mean > math.log(np.finfo(np.float64).max) else math.exp(mean)


def list_sum(lists: pa.ChunkedArray | pa.Array) -> tuple[float, int]:
    """Σ of all numbers in a column of lists, in order and in float64, and how many there are; nulls are left out."""
    flat = lists.flatten() if isinstance(lists, pa.Array) else pa.chunked_array([c.flatten() for c in lists.chunks], lists.type.value_type)
    values = flat.drop_null().to_numpy()
    return math.fsum(values.astype(np.float64)), len(values)
