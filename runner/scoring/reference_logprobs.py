"""Logprobs of finished completions under a reference: the base model, with the adapter off, or a second model.

The scorer computes them in batches, on the model's thread, without a [B, T, V] array. The batch that decodes is not touched.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from ..core.arrays import Ids
from ..core.images import PromptImage
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Failure, Generated, Scored
from ..core.requests import Passage, Request, ScoreRequest
from ..engine.interface import one_window
from ..engine.setup import Setup
from .scorer import Scorer

SHARE = 0.25  # of the memory for caches; the decoding batch has the rest


@dataclass(slots=True, frozen=True)
class Finished:
    """A finished completion and its request."""

    request: Request
    outcome: Generated


@dataclass(slots=True, frozen=True)
class Reference:
    """Scores finished completions. ``own``: ``setup`` is the policy's own, and its adapter is off meanwhile; else a second model's."""

    setup: Setup
    own: bool

    def logprobs(self, finished: Sequence[Finished], stopped: Callable[[], bool]) -> Iterator[Generated | Failure]:
        """Yields the outcomes with ref_logprobs and ref_tempered_logprobs, in any order; fewer when ``stopped``."""
        adapters = self.setup.adapters
        with adapters.off() if self.own and adapters is not None else nullcontext():
            for temperature in sorted({each.request.work.sampling.temperature for each in finished}):
                equal = [each for each in finished if each.request.work.sampling.temperature == temperature]
                yield from self._scored(equal, temperature, stopped)

    def _scored(self, finished: list[Finished], temperature: float, stopped: Callable[[], bool]) -> Iterator[Generated | Failure]:
        scorer = Scorer(scoring_setup(self.setup, temperature))
        requests = [
            reference_request(at, each.request.prompt.ids, each.outcome.ids, each.request.prompt.images) for at, each in enumerate(finished)
        ]
        for scored in scorer.run(one_window(requests), stopped):
            outcome = finished[scored.row].outcome
            if isinstance(scored, Scored):
                scores = scored.scores[0]
                yield replace(outcome, ref_logprobs=scores.logprobs, ref_tempered_logprobs=scores.tempered)
            elif isinstance(scored, Failure):
                stage = "reference" if scored.stage == "score" else scored.stage
                yield replace(scored, row=outcome.row, sample=outcome.index, stage=stage)


def scoring_setup(setup: Setup, temperature: float) -> Setup:
    """Returns a setup for scoring with the same network, as it is now, beside a batch that decodes."""
    whole = 1.0 if setup.kv is None else setup.kv.bits / 32  # the limits count quantized tokens, and a scorer's are not
    limits = replace(setup.limits, kv_bytes=SHARE * whole * setup.limits.kv_bytes)
    return replace(setup.split_anew(), wanted=LogprobOptions(echo=True, temperature=temperature), limits=limits)


def reference_request(row: int, prompt: Ids, completion: Ids, images: tuple[PromptImage, ...] = ()) -> ScoreRequest:
    """Returns a request for the logprobs of a completion's tokens [N] after its prompt's [T]. images: the prompt's."""
    ids = np.concatenate([prompt, completion])
    return ScoreRequest(row, (Passage(ids, np.arange(len(prompt), len(ids), dtype=np.int32)),), images=images)
