"""Runs one architecture through the engine and the scorer, and measures how far logprobs are from each row alone.

The truth is the network itself on one row, without pads and without mates: a call of the whole row, or token by token on plain
caches. Knows nothing of which architecture it is, and asserts nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.runner.core.outcomes import Generated
from mlx_bulk.runner.core.requests import Request, Sampling, ScoreRequest
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kv_cache import make_caches
from numpy.typing import NDArray

from ..runner.support.tiny import Ids
from ..runner.support.tiny_runs import documents, multiple_choice, request, run, scored
from .configs import VOCABULARY

LENGTHS = (5, 33, 1, 17, 17, 9, 2, 21)  # of prompts; windows are 8, and what is chosen by an index is fewer than 20
TOKENS = (6, 5, 9, 4, 7, 12, 3, 5)  # to generate: rows leave at different steps, short ones grow beyond the window
FORKED = 3  # the row that has two samples
TEXTS = (5, 33, 17, 9, 2, 21)  # lengths of documents
Logprobs = NDArray[np.float64]


@dataclass(slots=True, frozen=True)
class Differences:
    """Largest differences of a logprob. ``alone``: generated tokens from those of each row decoded alone; ``whole``: from one call of
    prompt and completion; ``echo``: a prompt's tokens from one call of it.
    """

    alone: float
    whole: float
    echo: float

    @property
    def batched(self) -> float:
        """From the row alone, called in the same way."""
        return max(self.alone, self.echo)


def prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


def requests(lengths: tuple[int, ...] = LENGTHS, tokens_of: tuple[int, ...] = TOKENS) -> list[Request]:
    """Prompts of unlike lengths, every other one sampled from, one of them twice."""
    found: list[Request] = []
    for i, (prompt, tokens) in enumerate(zip(prompts(lengths), tokens_of, strict=True)):
        sampling = Sampling(max_tokens=tokens, temperature=float(i % 2))
        found.append(request(i, prompt, sampling, seeds=(i, 50 + i) if i == FORKED else (i,)))
    return found


def choices() -> list[ScoreRequest]:
    """Prompts that share few-shot examples, each with choices of unlike lengths."""
    shots, questions = prompts((26,), seed=1)[0], prompts((11, 14, 12), seed=2)
    return multiple_choice([shots + question for question in questions], [prompts((3, 1, 5), seed=3 + i) for i in range(3)])


class Alone:
    """A network's results for each row alone; each row is run once."""

    def __init__(self, network: Any):
        self._network = network
        self._wholes: dict[tuple[int, ...], Logprobs] = {}
        self._steps: dict[tuple[int, ...], Logprobs] = {}

    def whole(self, ids: Ids) -> Logprobs:
        """Logprobs [T - 1] of a row's own tokens from one call."""
        key = tuple(ids)
        if key not in self._wholes:
            caches = make_caches(self._network, 1, padded=False)
            self._wholes[key] = _of_targets(self._network(mx.array([ids[:-1]]), cache=caches)[0], ids[1:]) if len(ids) > 1 else np.zeros(0)
        return self._wholes[key]

    def steps(self, prompt: Ids, completion: Ids) -> Logprobs:
        """Logprobs [N] of a completion, its tokens fed one by one."""
        key = (*prompt, -1, *completion)
        if key not in self._steps:
            caches = make_caches(self._network, 1, padded=False)
            if len(prompt) > 1:
                mx.eval(self._network(mx.array([prompt[:-1]]), cache=caches))
            fed = [prompt[-1], *completion[:-1]]
            logits = [self._network(mx.array([[token]]), cache=caches)[0] for token in fed]
            self._steps[key] = _of_targets(mx.concatenate(logits), completion)
        return self._steps[key]


def logits(network: Any, ids: Ids) -> NDArray[np.float32]:
    """Logits [T, V] of a row, from one call without caches."""
    return np.array(network(mx.array([ids]))[0].astype(mx.float32))


def _of_targets(logits: mx.array, targets: Ids) -> Logprobs:
    x = np.array(logits.astype(mx.float32)).astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return (x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))[np.arange(len(targets)), targets]


def generating(setup: Setup, alone: Alone, asked: list[Request] | None = None) -> Differences:
    """Runs requests through the engine."""
    asked = asked or requests()
    pairs = [(next(r for r in asked if r.row == o.row).prompt.ids.tolist(), o) for o in run(setup, asked)]
    return Differences(
        max(_gap(o.scores.logprobs, alone.steps(prompt, o.ids.tolist())) for prompt, o in pairs),
        max(_gap(o.scores.logprobs, alone.whole(prompt + o.ids.tolist())[len(prompt) - 1 :]) for prompt, o in pairs),
        max(_gap(_echo(o), alone.whole(prompt)) for prompt, o in pairs),
    )


def _echo(outcome: Generated) -> NDArray[np.float32]:
    assert outcome.echo is not None
    return outcome.echo.logprobs


def scoring(setup: Setup, alone: Alone, asked: list[ScoreRequest]) -> float:
    """Runs passages through the scorer: the largest difference from one call of each."""
    gaps: list[float] = []
    for given, outcome in zip(asked, scored(setup, asked), strict=True):
        for passage, scores in zip(given.passages, outcome.scores, strict=True):
            gaps.append(_gap(scores.logprobs, alone.whole(passage.ids.tolist())[passage.positions - 1]))
    return max(gaps)


def _gap(found: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    """Infinite where one of them is no number."""
    assert found.shape == truth.shape
    gap = np.abs(found - truth).max(initial=0.0)
    return float(gap) if np.isfinite(gap) else float("inf")


def small(setup: Setup, **more: Any) -> Setup:
    """The setup with batches of a few rows, so that rows wait, leave and join."""
    limits = replace(setup.limits, rows=min(setup.limits.rows, 4), tokens=70, kv_bytes=float("inf"))
    return replace(setup, limits=limits, **more)


def in_chunks(setup: Setup) -> Setup:
    """The setup with prefills in chunks of eight tokens a row, pads and all, as without a head to be had apart."""
    return small(setup, head=None, logit_bytes=1)


def attempt(measure: Callable[[], float]) -> float:
    """Returns the result of ``measure``; infinite where the network crashes."""
    try:
        return measure()
    except Exception:  # a model file may fail in any way
        return float("inf")


def forced(setup: Setup, network: Any) -> dict[str, Callable[[], float]]:
    """Returns the error in logprobs of each way and shortcut of scoring, whether or not the probes allow it."""
    alone = Alone(network)
    loose = small(replace(setup, limits=replace(setup.limits, rows=4)), head=None)
    loose = loose.with_features(right_padded=True, shared_passages=True, chunked=True, ragged=True)
    even, ragged = (
        replace(loose.with_features(padded=padded), limits=replace(loose.limits, equal_lengths=not padded)) for padded in (False, True)
    )
    return {
        "padded": lambda: attempt(lambda: max(generating(ragged, alone).batched, generating(in_chunks(ragged), alone).batched)),
        "joined": lambda: attempt(lambda: generating(ragged.with_features(chunked=False, ragged=False), alone).batched),
        "exact": lambda: attempt(lambda: generating(even.with_features(chunked=False), alone).batched),
        "chunked": lambda: attempt(lambda: generating(in_chunks(even), alone).batched),
        "right_padded": lambda: attempt(lambda: scoring(loose, alone, documents(prompts(TEXTS)))),
        "shared": lambda: attempt(lambda: scoring(loose, alone, choices())),
    }
