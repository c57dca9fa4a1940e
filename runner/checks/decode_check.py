"""Measures how far logprobs of rows that the engine decodes together are from those of each row alone.

The engine runs them as a job would. Rows of unlike length are prefilled together, in one call and in chunks; samples fork; rows leave
and others join; each grows beyond a sliding window. Does not know what follows from a difference.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..core.logprob_options import LogprobOptions
from ..core.requests import Request
from ..engine.setup import BatchFeatures, Setup
from ..layers.lm_head import Head
from .padding_probe import PADDED, Way
from .trial import SingleRows, outcomes_of, random_ids, trial_engine, trial_limits, trial_request

ROWS = 3  # at once
SAMPLES = {2: 2, 9: 4}  # of rows that have several; four do not fit at once


def batch_difference(alone: SingleRows, vocabulary: int, way: Way, window: int, allowed: float, head: Head | None, chunked: bool) -> float:
    """Returns the largest difference of a logprob between batches of that ``way`` and each row alone, in one call or decoded.

    Stops at the first row that differs by more than ``allowed``. Infinite where a logprob is NaN. Some rows are longer than ``window``
    tokens at the start, some at the end. ``head``: as in ``Setup``; ``chunked``: as in ``BatchFeatures``.
    """
    requests = list(_requests(vocabulary, window))
    limits = trial_limits(1 if way == "alone" else ROWS, equal_lengths=way not in PADDED)
    features = BatchFeatures(padded=way in PADDED, ragged=way == "padded")
    at_once = Setup(alone.network, vocabulary, limits, LogprobOptions(echo=head is not None), features, head=head)
    worst = 0.0
    for setup in [at_once, _in_chunks(at_once, window)] if chunked else [at_once]:
        worst = max(worst, alone.largest_gap(requests, outcomes_of(trial_engine(setup), requests), allowed))
        if worst > allowed:
            break
    return worst


def _requests(vocabulary: int, window: int) -> Iterator[Request]:
    """Yields rows that end at different steps, some of one length; short ones grow beyond one window, one beyond two.

    Two are a single token, which leaves nothing in a cache: one is prefilled with a longer row, and joins others.
    """
    rng = np.random.default_rng(3)
    lengths = (3 * window + 2, window - 3, window - 3, 2 * window + 1, 2 * window - 3, 2 * window + 1, 3, 2, 1, 1)
    max_tokens = (3, 6, 5, 2, 6, 4, 9, 3, 3, 4)
    for row, (ids, tokens) in enumerate(zip(random_ids(rng, vocabulary, lengths), max_tokens, strict=True)):
        yield trial_request(row, ids, tokens, SAMPLES.get(row, 1))


def _in_chunks(setup: Setup, window: int) -> Setup:
    """Returns the setup that feeds prompts in calls of less than two windows.

    A job does so where the logits of all prompt tokens are read and the network is not split.
    """
    return replace(setup, wanted=LogprobOptions(echo=True), head=None, logit_bytes=4 * setup.vocabulary * (window * 3 // 2))
