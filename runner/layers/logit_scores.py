"""Computes from logits, or from the product that makes them, the scores that a job asks for. Knows no network."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels import fused_logprobs
from ...kernels.fused_logprobs import Product
from ...kernels.logprobs import Scores, score
from ...kernels.sampling.temperature_logprobs import tempered
from ..core.logprob_options import LogprobOptions


def score_logits(wanted: LogprobOptions, logits: mx.array, targets: NDArray[np.int32]) -> Scores:
    """Returns the scores of ``targets`` [N] under ``logits`` [N, V]."""
    scores = score(logits, targets, wanted.top, wanted.stats, wanted.greedy)
    if wanted.temperature is None:
        return scores
    if wanted.temperature in (0.0, 1.0):
        return replace(scores, tempered=scores.logprobs)
    return replace(scores, tempered=tempered(logits, targets, np.full(len(targets), wanted.temperature, np.float32)))


def score_product(wanted: LogprobOptions, product: Product, counts: NDArray[np.intp], targets: NDArray[np.int32]) -> Scores | None:
    """Returns the scores of ``targets`` [M] without making the logits [N, V], which are a product; None where logits are needed.

    counts: [N], how many of the targets each row of logits has.
    """
    if wanted.top or wanted.stats or wanted.temperature not in (None, 0.0, 1.0) or not fused_logprobs.suits(product):
        return None
    scores = fused_logprobs.on_cpu(product, counts, targets, wanted.greedy)
    return scores if wanted.temperature is None else replace(scores, tempered=scores.logprobs)


def no_scores(wanted: LogprobOptions) -> Scores:
    """Returns the scores of no tokens."""
    ints, floats, k = np.zeros(0, np.int32), np.zeros(0, np.float32), wanted.top
    tops = (ints.reshape(0, k), floats.reshape(0, k)) if k else (None, None)
    stats, greedy = (ints, floats) if wanted.stats else (None, None), ints.astype(np.bool_) if wanted.greedy else None
    return Scores(floats, *tops, *stats, greedy, None if wanted.temperature is None else floats)
