"""What scoring may rely on with a loaded model, found by trying: a head apart, pads on the right, prefixes that are fed once.

The scorer itself runs rows that need each shortcut, and the same rows go through the network alone, whole and without pads;
where their logprobs disagree, or anything crashes, the shortcut is not taken. Knows models, not names of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .cache import fresh
from .head import Head
from .planner import Limits
from .prefill import Setup, Wanted
from .probes import allowed_difference
from .records import Passage, Scored, ScoreRequest
from .scorer import Scorer

LENGTHS = (24, 7, 15)  # of rows that stand together; the longest goes in chunks too
CHUNK = 10  # tokens
PREFIX, CONTEXTS, CHOICES = 18, (17, 20), (1, 3, 6)  # tokens: long enough for the plan to share them


@dataclass(slots=True, frozen=True)
class Shortcuts:
    """What can be taken, as ``Setup`` names it, and why the rest can't."""

    head: Head | None
    right_padded: bool
    shared: bool
    reasons: tuple[str, ...]


def shortcuts(network: Any, vocabulary: int, limits: Limits, padded: bool) -> Shortcuts:
    """Tries each shortcut as a run with these ``limits`` would take it. ``padded``: as the probe of generation found."""
    rng = np.random.default_rng(2)
    rows = [_whole(i, ids) for i, ids in enumerate(_random(rng, vocabulary, LENGTHS))]
    prefix = rng.integers(0, vocabulary, PREFIX).astype(np.int32)
    contexts = [np.concatenate([prefix, ids]) for ids in _random(rng, vocabulary, CONTEXTS)]
    choices = [_choices(i, context, _random(rng, vocabulary, CHOICES)) for i, context in enumerate(contexts)]
    allowed = allowed_difference(network, vocabulary)
    truth = {id(requests): _alone(network, requests) for requests in (rows, choices)}
    reasons: list[str] = []

    def holds(name: str, try_out: Callable[[], float]) -> bool:
        try:
            difference = try_out()
        except Exception as error:  # a model file may fail in any way, and a probe that crashes is a probe that failed
            reasons.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            return False
        if difference > allowed:
            reasons.append(f"{name}: logprobs change by {difference:.2g} (allowed {allowed:.2g})")
        return difference <= allowed

    def scoring(setup: Setup, requests: list[ScoreRequest]) -> float:
        return _difference(setup, requests, truth[id(requests)])

    few = replace(limits, rows=min(limits.rows, 8), tokens=1 << 30, kv_bytes=float("inf"))
    one, chunks = replace(few, rows=1), replace(few, rows=1, tokens=CHUNK)
    setup = Setup(network, vocabulary, few, Wanted(echo=True), padded, right_padded=True, shared=True)
    split = holds("head apart", lambda: scoring(replace(setup, limits=one, head=_head(network)), rows))
    setup = replace(setup, head=_head(network) if split else None)
    right_padded = holds("pads on the right", lambda: scoring(setup, rows))
    right_padded = right_padded and holds("chunks", lambda: scoring(replace(setup, limits=chunks), rows))
    shared = right_padded and holds("shared prefixes", lambda: scoring(setup, choices))
    return Shortcuts(setup.head, right_padded, shared, tuple(reasons))


def _head(network: Any) -> Head:
    """The network in two. Raises ValueError where its parts aren't named as others' are, or the body makes the logits itself."""
    head = Head(network)
    states = head.states(mx.array([[0, 0]]), fresh(network, 1, padded=False))
    if states.shape[-1] == head.logits(states[0]).shape[-1]:
        raise ValueError(f"the body of {type(network).__name__} makes the logits itself")
    return head


def _random(rng: np.random.Generator, vocabulary: int, lengths: tuple[int, ...]) -> list[NDArray[np.int32]]:
    return [rng.integers(0, vocabulary, n).astype(np.int32) for n in lengths]


def _whole(row: int, ids: NDArray[np.int32]) -> ScoreRequest:
    return ScoreRequest(row, (Passage(ids, np.arange(1, len(ids), dtype=np.int32)),))


def _choices(row: int, context: NDArray[np.int32], choices: list[NDArray[np.int32]]) -> ScoreRequest:
    whole = [np.concatenate([context, ids]) for ids in choices]
    return ScoreRequest(row, tuple(Passage(ids, np.arange(PREFIX + 1, len(ids), dtype=np.int32)) for ids in whole))


def _alone(network: Any, requests: list[ScoreRequest]) -> list[NDArray[np.float32]]:
    """Each passage's logprobs [N] from one call of the whole network."""
    found: list[NDArray[np.float32]] = []
    for passage in (passage for request in requests for passage in request.passages):
        logits: mx.array = network(mx.array(passage.ids)[None], cache=fresh(network, 1, padded=False))[0]
        at = mx.array(passage.positions) - 1
        found.append(Wanted().scores(logits[at], passage.ids[passage.positions]).logprobs)
    return found


def _difference(setup: Setup, requests: list[ScoreRequest], truth: list[NDArray[np.float32]]) -> float:
    """Largest difference of a logprob; infinite where one is NaN."""
    windows = iter([requests])
    outcomes = sorted(Scorer(setup).run(lambda wait: next(windows, None)), key=lambda outcome: outcome.row)
    found = [scores.logprobs for outcome in outcomes if isinstance(outcome, Scored) for scores in outcome.scores]
    if len(found) < len(truth):
        return float("inf")
    return max(float(np.abs(a - b).max()) for a, b in zip(found, truth, strict=True))
