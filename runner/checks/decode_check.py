"""How far logprobs of rows that the engine runs together are from those of each row alone.

The engine itself runs them, as a job would: rows of unlike length prefilled together, in chunks and at once, samples forked, rows
that leave and others that enter, and each grows beyond a window. Knows a network and a way to batch; what follows is not known here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.logprobs import score
from ..core.arrays import Ids
from ..core.logprob_options import LogprobOptions
from ..core.requests import Generate, Generated, Outcome, Prompt, Request, Sample, Sampling
from ..engine.engine import Engine
from ..engine.setup import Setup
from ..layers.kv_cache import fresh
from ..layers.lm_head import Head
from ..layers.network import Network
from ..scheduler.limits import Limits
from .padding_probe import PADDED, Way

ROWS = 3  # at once
SAMPLES = {2: 2, 9: 4}  # of rows that have several; four do not fit at once
Logprobs = NDArray[np.float32]


class Alone:
    """Logprobs of rows of one network, each by itself on plain caches. What was asked before is not computed again."""

    def __init__(self, network: Any):
        self.network = network
        self._known: dict[tuple[int, bytes], Logprobs] = {}

    def logprobs(self, ids: Ids, at_once: int) -> Logprobs:
        """Logprobs [T - 1] of the tokens of a row behind its first; the first ``at_once`` are fed in one call, each other in its own."""
        key = at_once, ids.tobytes()
        if key not in self._known:
            self._known[key] = self._fed(ids, at_once)
        return self._known[key]

    def _fed(self, ids: Ids, at_once: int) -> Logprobs:
        caches, parts = fresh(self.network, 1, padded=False), list[mx.array]()
        for part in np.split(ids[:-1], range(at_once, len(ids) - 1)):
            if len(part):
                parts.append(Network(self.network)(mx.array(part)[None], caches)[0])
                mx.eval(parts[-1])
        return score(mx.concatenate(parts), ids[1:]).logprobs


def batch_difference(alone: Alone, vocabulary: int, way: Way, window: int, allowed: float, head: Head | None, chunked: bool) -> float:
    """Largest difference of a logprob in batches of that ``way``, up to the first row that is further than ``allowed`` from the
    truth: one call of the whole row, or the row decoded alone. Infinite where a logprob is NaN.

    Some rows are longer than ``window`` tokens at the start, some at the end. ``head`` and ``chunked``: as ``Setup`` has them.
    """
    requests = list(_requests(vocabulary, window))
    limits = Limits(1 if way == "alone" else ROWS, 1 << 30, float("inf"), 1.0, 1.0, equal_lengths=way not in PADDED)
    at_once = Setup(
        alone.network, vocabulary, limits, LogprobOptions(echo=head is not None), way in PADDED, ragged=way == "padded", head=head
    )
    worst = 0.0
    for setup in [at_once, _in_chunks(at_once, window)] if chunked else [at_once]:
        worst = max(worst, farthest(alone, requests, _outcomes(setup, requests), allowed))
        if worst > allowed:
            break
    return worst


def farthest(alone: Alone, requests: Sequence[Request], outcomes: Iterable[Outcome], allowed: float) -> float:
    """Largest difference of a logprob of ``outcomes``, up to the first that is further than ``allowed`` from the truth."""
    prompts, worst = {request.row: request.prompt.ids for request in requests}, 0.0
    for outcome in outcomes:
        if not isinstance(outcome, Generated):
            return float("inf")
        worst = max(worst, _gap(alone, prompts[outcome.row], outcome, allowed))
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
        yield of_ids(row, ids, tokens, SAMPLES.get(row, 1))


def of_ids(row: int, ids: Ids, tokens: int, samples: int = 1) -> Request:
    """A request for ``samples`` completions of so many ``tokens`` behind ``ids`` [T]."""
    drawn = tuple(Sample(i, 10 * row + i) for i in range(samples))
    return Request(row, Prompt("", ids, np.zeros_like(ids)), Generate(Sampling(max_tokens=tokens), drawn))


def _in_chunks(setup: Setup, window: int) -> Setup:
    """Prompts in calls of less than two windows, as where the logits of all their tokens are read and the network is not split."""
    return replace(setup, wanted=LogprobOptions(echo=True), head=None, logit_bytes=4 * setup.vocabulary * (window * 3 // 2))


def _outcomes(setup: Setup, requests: list[Request]) -> Iterator[Outcome]:
    def no_stopper(sampling: Sampling) -> Any:
        raise ValueError(f"there is a stop string: {sampling.stop}")

    windows = iter([requests])
    return Engine(setup, frozenset(), no_stopper).run(lambda wait: next(windows, None))


def _gap(alone: Alone, prompt: Ids, outcome: Generated, allowed: float) -> float:
    """How far logprobs of an outcome's tokens, and of its prompt's where there are any, are from the truth."""
    found = outcome.scores.logprobs if outcome.echo is None else np.concatenate([outcome.echo.logprobs, outcome.scores.logprobs])
    ids, least = np.concatenate([prompt, outcome.ids]), float("inf")
    for at_once in (len(ids), len(prompt) - 1):
        gap = np.abs(found - alone.logprobs(ids, at_once)[-len(found) :]).max()
        least = min(least, float(gap) if np.isfinite(gap) else float("inf"))
        if least <= allowed:
            break
    return least
