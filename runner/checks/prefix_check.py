"""Tests whether prompts may be prefilled on top of a shared prefix: their logprobs must be those of each row alone.

The engine runs them as a job would: the prefix once, then the rest of each prompt on a copy of its caches, then all decode together.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.logprobs import score
from ..core.arrays import Ids
from ..core.logprob_options import LogprobOptions
from ..core.requests import Request
from ..engine.prefill import compute_prefix, prefill
from ..engine.setup import BatchFeatures, Setup
from ..layers.lm_head import Head
from .padding_probe import Way, allowed_difference, crash_reason
from .trial import SingleRows, largest_gap, outcomes_of, random_ids, row_logits, trial_engine, trial_limits, trial_request

ROWS = 4  # at once
PREFIX = 12  # tokens that short rows have in common
TAILS = (5, 1)  # tokens that each has besides; of the second nothing is left to prefill
SUBJECT = "rows on top of a shared prefix"


def prefix_refusal(alone: SingleRows, vocabulary: int, way: Way, window: int, allowed: float, head: Head | None) -> str:
    """Returns why prompts must not share prefixes; empty where logprobs differ by no more than ``allowed``.

    Rows and their prefixes are longer than ``window`` tokens.
    """
    setup = _setup(alone.network, vocabulary, way, head).with_features(shared_prompts=True)
    try:
        difference = _difference(alone, setup, _long(vocabulary, window), allowed)
    except Exception as error:  # a model file may fail in any way
        return crash_reason(SUBJECT, error)
    return _refusal(difference, allowed)


def refused_by_weights(network: Any, vocabulary: int, way: Way, allowed: float, head: Head | None) -> str:
    """Returns the same for two short rows, in as few calls as possible: each call reads all weights of a large model."""
    try:
        setup = _setup(network, vocabulary, way, head)
        difference = _of_short_rows(setup, [])
        if not difference <= allowed:  # a device's noise, which takes more calls to know
            allowed, difference = allowed_difference(network, vocabulary), min(difference, _of_short_rows(setup, [PREFIX, -1]))
    except Exception as error:  # a model file may fail in any way
        return crash_reason(SUBJECT, error)
    return _refusal(difference, allowed)


def _refusal(difference: float, allowed: float) -> str:
    """Returns why the difference is too large; empty where it is not."""
    return "" if difference <= allowed else f"{SUBJECT} change logprobs by {difference:.2g} (allowed {allowed:.2g})"


def _setup(network: Any, vocabulary: int, way: Way, head: Head | None) -> Setup:
    features = BatchFeatures(padded=True, ragged=way == "padded")
    return Setup(network, vocabulary, trial_limits(ROWS), LogprobOptions(echo=head is not None), features, head=head)


def _of_short_rows(setup: Setup, cuts: list[int]) -> float:
    """Returns the largest difference of a logprob of any id at the last token, or of the echo, from each row alone.

    ``cuts``: where the calls end in which the row alone is fed.
    """
    rng = np.random.default_rng(5)
    prefix, *tails = random_ids(rng, setup.vocabulary, (PREFIX, *TAILS))
    base = compute_prefix(setup, prefix, None)
    group = prefill(setup, [trial_request(row, np.concatenate([prefix, tail]), 1) for row, tail in enumerate(tails)], [base] * len(tails))
    last = setup.network(mx.array([[int(one.prompt.ids[-1])] for one in group.requests]), group.caches)[:, -1]
    worst = 0.0
    for one, found, echo in zip(group.requests, _log_softmax(last), group.echoes, strict=True):
        ids = one.prompt.ids
        logits = row_logits(setup.model, ids, cuts)
        worst = max(worst, largest_gap(found, _log_softmax(logits[-1:])[0]))
        if echo is not None:
            worst = max(worst, largest_gap(echo.logprobs, score(logits[:-1], ids[1:]).logprobs))
    return worst


def _log_softmax(logits: mx.array) -> NDArray[np.float32]:
    """Returns the logprobs [B, V] of logits [B, V]."""
    logits = logits.astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def _difference(alone: SingleRows, setup: Setup, requests: Sequence[Request], allowed: float) -> float:
    engine = trial_engine(setup)
    worst = alone.largest_gap(requests, outcomes_of(engine, requests), allowed)
    if worst <= allowed and engine.progress.prefilled >= sum(len(request.prompt.ids) - 1 for request in requests):
        raise ValueError("they shared nothing")
    return worst


def _long(vocabulary: int, window: int) -> list[Request]:
    """Returns rows that share one prefix, some of which share a longer one too, and rows that share none.

    Of some nothing is left to feed after the prefix, and one prompt stands twice. Rows end at different steps, so that some join
    others; one has two samples.
    """
    rng = np.random.default_rng(6)

    def tokens(n: int) -> Ids:
        return rng.integers(0, vocabulary, n).astype(np.int32)

    top = tokens(5 * window + 3)
    below = np.concatenate([top, tokens(4 * window + 1)])
    same = tokens(window + 2)
    tails: Iterable[tuple[Ids, Ids]] = [
        *((below, tokens(n)) for n in (2 * window + 2, 4, 1, 1)),
        *((top, tokens(n)) for n in (window, 1)),
        *((below, same) for _ in range(2)),
        *((top[:0], tokens(n)) for n in (2 * window - 1, 1)),
    ]
    return [
        trial_request(row, np.concatenate([prefix, tail]), 3 + row % 4 if row % 3 else window + 3, samples=1 + (row == 1))
        for row, (prefix, tail) in enumerate(tails)
    ]
