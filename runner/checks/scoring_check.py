"""Tests which shortcuts the scorer may take with a model: a split-off LM head, right padding, chunks, shared prefixes.

The scorer runs rows that need each shortcut. The same rows go through the network alone, whole and without pads. A shortcut is not
taken where their logprobs differ, or where anything crashes. Knows models, not their names.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..core.errors import first_line
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Scored
from ..core.requests import Passage, ScoreRequest
from ..engine.setup import BatchFeatures, Setup
from ..layers.kv_cache import make_caches
from ..layers.lm_head import Head
from ..layers.network import Network
from ..layers.state_scores import score_logits
from ..scheduler.limits import Limits
from ..scoring.scorer import Scorer
from .padding_probe import allowed_difference
from .trial import largest_gap, outcomes_of, random_ids, row_logits, trial_score_request

CHUNKS = "chunks"  # what reasons call a row that is fed in several calls
WINDOW = 8  # tokens: rows are longer, and so is what they share
CHOICES = (1, 3, 6)  # tokens


@dataclass(slots=True, frozen=True)
class Shortcuts:
    """Shortcuts that are right, by their names in ``BatchFeatures``, and the reasons against the others.

    head: the network can be split into its body and its LM head.
    """

    head: bool
    right_padded: bool
    shared_passages: bool
    chunked: bool
    reasons: tuple[str, ...] = ()

    def features_on(self, setup: Setup) -> Setup:
        """Returns ``setup`` with these shortcuts; its head stays."""
        return setup.with_features(right_padded=self.right_padded, shared_passages=self.shared_passages, chunked=self.chunked)


def find_shortcuts(
    network: Any, vocabulary: int, limits: Limits, padded: bool, allowed: float | None = None, window: int = WINDOW
) -> Shortcuts:
    """Tries each shortcut as a run with these ``limits`` would take it, on rows longer than ``window`` tokens.

    padded: as in ``BatchFeatures``. allowed: how far a logprob may be off; None for what the device's noise allows.
    """
    rng = np.random.default_rng(2)
    rows = [trial_score_request(i, ids) for i, ids in enumerate(random_ids(rng, vocabulary, (3 * window, window - 1, 2 * window - 1)))]
    (prefix,) = random_ids(rng, vocabulary, [2 * window + 2])  # long enough for the plan to share it
    contexts = [np.concatenate([prefix, ids]) for ids in random_ids(rng, vocabulary, (2 * window + 1, 2 * window + 4))]
    choices = [_choices(i, context, len(prefix), random_ids(rng, vocabulary, CHOICES)) for i, context in enumerate(contexts)]
    allowed = allowed_difference(network, vocabulary) if allowed is None else allowed
    truth = {id(requests): _alone(network, requests) for requests in (rows, choices)}
    reasons: list[str] = []

    def holds(name: str, setup: Setup, requests: list[ScoreRequest]) -> bool:
        try:
            difference = _difference(setup, requests, truth[id(requests)])
        except Exception as error:  # a model file may fail in any way, and a probe that crashes is a probe that failed
            reasons.append(f"{name}: {first_line(error)}")
            return False
        if difference > allowed:
            reasons.append(f"{name}: logprobs change by {difference:.2g} (allowed {allowed:.2g})")
        return difference <= allowed

    setup = _setup(network, vocabulary, limits, padded)
    one = replace(setup.limits, rows=1)
    try:
        head = _head(network)
    except Exception as error:
        head = None
        reasons.append(f"head apart: {first_line(error)}")
    if head is not None and holds("head apart", replace(setup, limits=one, head=head), rows):
        setup = replace(setup, head=head)
    chunked = holds(CHUNKS, replace(setup, limits=replace(one, tokens=window + 2)), rows)
    setup = setup.with_features(chunked=chunked)
    right_padded = holds("pads on the right", setup, rows)
    shared = right_padded and holds("shared prefixes", setup, choices)
    return Shortcuts(setup.head is not None, right_padded, shared, chunked, tuple(reasons))


def confirm_shortcuts(network: Any, vocabulary: int, limits: Limits, padded: bool, shown: Shortcuts, allowed: float) -> Shortcuts:
    """Returns which of the shortcuts that a twin has ``shown`` to be right are so with a network's own weights, on short rows.

    Tries all at once; where logprobs differ by more than ``allowed``, each by itself.
    """
    if not (shown.head or shown.right_padded or shown.shared_passages):
        return shown
    rng = np.random.default_rng(4)
    (prefix,) = random_ids(rng, vocabulary, (2 * WINDOW + 2,))
    requests = [_choices(0, prefix, len(prefix), random_ids(rng, vocabulary, CHOICES[1:]))]
    setup = _setup(network, vocabulary, limits, padded)
    with suppress(Exception):  # which of them fails is tried below
        head = Head(network) if shown.head else None
        setup = shown.features_on(replace(setup, head=head))
        if _difference(setup, requests, _alone(network, requests)) <= allowed:
            return shown
    own = find_shortcuts(network, vocabulary, limits, padded)
    return Shortcuts(
        own.head and shown.head,
        own.right_padded and shown.right_padded,
        own.shared_passages and shown.shared_passages,
        own.chunked and shown.chunked,
        (*shown.reasons, *own.reasons),
    )


def _setup(network: Any, vocabulary: int, limits: Limits, padded: bool) -> Setup:
    few = replace(limits, rows=min(limits.rows, 8), tokens=1 << 30, kv_bytes=float("inf"), few_shapes=False)
    return Setup(network, vocabulary, few, LogprobOptions(echo=True), BatchFeatures(padded, right_padded=True, shared_passages=True))


def _head(network: Any) -> Head:
    """Splits the network in two. Raises ValueError where its parts have other names than usual, or the body makes the logits."""
    head = Head(network)
    split = Network(network, head)
    states = split(mx.array([[0, 0]]), make_caches(network, 1, padded=False), read="states")
    if states.shape[-1] == split.logits(states[0]).shape[-1]:
        raise ValueError(f"the body of {type(network).__name__} makes the logits itself")
    return head


def _choices(row: int, context: NDArray[np.int32], first: int, choices: list[NDArray[np.int32]]) -> ScoreRequest:
    whole = [np.concatenate([context, ids]) for ids in choices]
    return ScoreRequest(row, tuple(Passage(ids, np.arange(first, len(ids), dtype=np.int32)) for ids in whole))


def _alone(network: Any, requests: list[ScoreRequest]) -> list[NDArray[np.float32]]:
    """Returns each passage's logprobs [N] from one call of the whole network."""
    logprobs: list[NDArray[np.float32]] = []
    for passage in (passage for request in requests for passage in request.passages):
        logits = row_logits(network, passage.ids)
        at = mx.array(passage.positions) - 1
        logprobs.append(score_logits(LogprobOptions(), logits[at], passage.ids[passage.positions]).logprobs)
    return logprobs


def _difference(setup: Setup, requests: list[ScoreRequest], truth: list[NDArray[np.float32]]) -> float:
    """Returns the largest difference of a logprob; infinite where one is NaN, or a passage has no scores."""
    outcomes = sorted(outcomes_of(Scorer(setup), requests), key=lambda outcome: outcome.row)
    found = [scores.logprobs for outcome in outcomes if isinstance(outcome, Scored) for scores in outcome.scores]
    if len(found) < len(truth):
        return float("inf")
    return max(largest_gap(*pair) for pair in zip(found, truth, strict=True))
