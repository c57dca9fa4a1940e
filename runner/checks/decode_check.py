"""How far logprobs of rows that the engine runs together are from those of each row alone.

The engine itself runs them, as a job would: rows of unlike length prefilled together, in chunks and at once, samples forked, rows
that leave and others that enter, and each grows beyond a window. Knows a network and a way to batch; what follows is not known here.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..core.logprob_options import LogprobOptions
from ..core.requests import Request
from ..engine.setup import BatchFeatures, Setup
from ..layers.lm_head import Head
from .padding_probe import PADDED, Way
from .trial import SingleRows, outcomes_of, trial_engine, trial_limits, trial_request

ROWS = 3  # at once
SAMPLES = {2: 2, 9: 4}  # of rows that have several; four do not fit at once


def batch_difference(alone: SingleRows, vocabulary: int, way: Way, window: int, allowed: float, head: Head | None, chunked: bool) -> float:
    """Largest difference of a logprob in batches of that ``way``, up to the first row that is further than ``allowed`` from the
    truth: one call of the whole row, or the row decoded alone. Infinite where a logprob is NaN.

    Some rows are longer than ``window`` tokens at the start, some at the end. ``head`` and ``chunked``: as ``Setup`` has them.
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
    """Rows of which some are of one length, and that end at different steps; short ones grow beyond one window, one beyond two.

    Of single tokens, which leave nothing in a cache, one is prefilled with a longer row and joins others.
    """
    rng = np.random.default_rng(3)
    lengths = (3 * window + 2, window - 3, window - 3, 2 * window + 1, 2 * window - 3, 2 * window + 1, 3, 2, 1, 1)
    for row, (length, tokens) in enumerate(zip(lengths, (3, 6, 5, 2, 6, 4, 9, 3, 3, 4), strict=True)):
        ids = rng.integers(0, vocabulary, length).astype(np.int32)
        yield trial_request(row, ids, tokens, SAMPLES.get(row, 1))


def _in_chunks(setup: Setup, window: int) -> Setup:
    """Prompts in calls of less than two windows, as where the logits of all their tokens are read and the network is not split."""
    return replace(setup, wanted=LogprobOptions(echo=True), head=None, logit_bytes=4 * setup.vocabulary * (window * 3 // 2))
