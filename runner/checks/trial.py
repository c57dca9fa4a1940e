"""Runs a few rows of random tokens, together and each alone, for the checks that compare the two.

Rows together go through the engine or the scorer, as in a job. A row alone goes through the network in plain calls. Does not know
how large a difference may be.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ...kernels.logprobs import score
from ..core.arrays import Floats, Ids
from ..core.kv_quantization import KVQuantization
from ..core.outcomes import Generated, Outcome
from ..core.requests import AnyRequest, Generate, Passage, Prompt, Request, Sample, Sampling, ScoreRequest
from ..engine.engine import Engine
from ..engine.interface import EngineInterface, one_window
from ..engine.setup import Setup
from ..layers.kv_cache import Caches, make_caches
from ..layers.network import Network
from ..scheduler.limits import Limits


def random_ids(rng: np.random.Generator, vocabulary: int, lengths: Iterable[int]) -> list[Ids]:
    """Returns a row of random token ids for each length."""
    return [rng.integers(0, vocabulary, length).astype(np.int32) for length in lengths]


def trial_limits(rows: int, equal_lengths: bool = False) -> Limits:
    """Returns limits of so many rows at once, with room for all their tokens and KV caches."""
    return Limits(rows, 1 << 30, float("inf"), 1.0, 1.0, equal_lengths)


def trial_request(row: int, ids: Ids, max_tokens: int, samples: int = 1) -> Request:
    """Returns a request for ``samples`` completions of ``max_tokens`` tokens after the prompt ``ids`` [T]."""
    drawn = tuple(Sample(index, 10 * row + index) for index in range(samples))
    return Request(row, Prompt("", ids, np.zeros_like(ids)), Generate(Sampling(max_tokens=max_tokens), drawn))


def trial_score_request(row: int, ids: Ids) -> ScoreRequest:
    """Returns a request for the logprobs of all of a text's ``ids`` [T] but the first."""
    return ScoreRequest(row, (Passage(ids, np.arange(1, len(ids), dtype=np.int32)),))


def trial_engine(setup: Setup) -> Engine:
    """Returns an engine for requests without stop strings, in which no token id ends a completion."""

    def no_stopper(sampling: Sampling) -> Any:
        raise ValueError(f"there is a stop string: {sampling.stop}")

    return Engine(setup, frozenset(), no_stopper)


def outcomes_of(runner: EngineInterface, requests: Sequence[AnyRequest]) -> Iterator[Outcome]:
    """Runs the requests in one window; yields their outcomes as they finish."""
    return runner.run(one_window(requests), lambda: False)


def row_logits(
    network: Any, ids: Ids, cuts: Sequence[int] = (), caches: Caches | None = None, kv: KVQuantization | None = None
) -> mx.array:
    """Returns the logits [T, V] of a row ``ids`` [T] alone, on plain caches (new ones, or the given).

    The row is fed in one call, or in several that end before the positions ``cuts`` (and at the end). kv: as in ``make_caches``.
    """
    caches = make_caches(network, 1, padded=False, kv=kv) if caches is None else caches
    parts = [part for part in np.split(ids, cuts) if len(part)]
    logits = list[mx.array]()
    for part in parts:
        logits.append(Network(network)(mx.array(part)[None], caches)[0])
        if len(parts) > 1:
            mx.eval(logits[-1])
    return logits[0] if len(logits) == 1 else mx.concatenate(logits)


class SingleRows:
    """Logprobs of rows of one network, each row run alone. Each is computed once and remembered."""

    def __init__(self, network: Any):
        self.network = network
        self._logprobs: dict[tuple[int, bytes], Floats] = {}

    def logprobs(self, ids: Ids, at_once: int) -> Floats:
        """Returns the logprobs [T - 1] of a row's tokens after its first.

        The first ``at_once`` tokens are fed in one call, each other token in a call of its own.
        """
        key = at_once, ids.tobytes()
        if key not in self._logprobs:
            logits = row_logits(self.network, ids[:-1], range(at_once, len(ids) - 1))
            self._logprobs[key] = score(logits, ids[1:]).logprobs
        return self._logprobs[key]

    def largest_gap(self, requests: Sequence[Request], outcomes: Iterable[Outcome], allowed: float) -> float:
        """Returns the largest difference between a logprob of ``outcomes`` and the same token's in its row alone.

        Stops at the first outcome that differs by more than ``allowed``. Infinite for an outcome that is a failure.
        """
        prompts, worst = {request.row: request.prompt.ids for request in requests}, 0.0
        for outcome in outcomes:
            if not isinstance(outcome, Generated):
                return float("inf")
            worst = max(worst, self._gap(prompts[outcome.row], outcome, allowed))
            if worst > allowed:
                break
        return worst

    def _gap(self, prompt: Ids, outcome: Generated, allowed: float) -> float:
        """Compares the logprobs of a completion, and of its prompt if they were asked for.

        The row alone is run in one call, or decoded step by step: a difference to either is rounding, so the smaller one counts.
        """
        scores = outcome.scores.logprobs
        logprobs = scores if outcome.echo is None else np.concatenate([outcome.echo.logprobs, scores])
        ids, least = np.concatenate([prompt, outcome.ids]), float("inf")
        for at_once in (len(ids), len(prompt) - 1):
            least = min(least, largest_gap(logprobs, self.logprobs(ids, at_once)[-len(logprobs) :]))
            if least <= allowed:
                break
        return least


def largest_gap(a: Floats, b: Floats) -> float:
    """Returns the largest difference of two arrays of one shape; infinite where one holds NaN, or -inf and the other does not."""
    with np.errstate(invalid="ignore"):
        gap = float(np.where(a == b, 0.0, np.abs(a - b)).max())
    return gap if np.isfinite(gap) else float("inf")
