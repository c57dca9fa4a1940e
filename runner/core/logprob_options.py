"""Options of the logprobs that a job asks for, and how they are computed from logits."""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels import fused_logprobs
from ...kernels.fused_logprobs import Product
from ...kernels.logprobs import Scores, score
from ...kernels.temperature_logprobs import tempered


@dataclass(slots=True, frozen=True)
class LogprobOptions:
    """Selects what is computed for each token.

    echo, top, stats: ``logprobs.prompt``, ``logprobs.top`` and ``logprobs.stats`` of the config.
    For scored tokens: ``greedy``, whether the token is the most likely one; ``temperature``, its logprob at this temperature too.
    For generated tokens: ``tempered``, the logprob under logits / temperature; ``kept``, the ids that could be drawn;
    ``reference``, the logprobs under another policy or model; ``logprobs``, the model's own logprobs. Without these, records hold
    the logprobs of the distribution sampled from in their place.
    """

    echo: bool = False
    top: int = 0
    stats: bool = False
    greedy: bool = False
    tempered: bool = False
    kept: bool = False
    reference: bool = False
    temperature: float | None = None
    logprobs: bool = True

    def scores(self, logits: mx.array, targets: NDArray[np.int32]) -> Scores:
        """Returns the scores of ``targets`` [N] under ``logits`` [N, V]."""
        scores = score(logits, targets, self.top, self.stats, self.greedy)
        if self.temperature is None:
            return scores
        if self.temperature in (0.0, 1.0):
            return replace(scores, tempered=scores.logprobs)
        return replace(scores, tempered=tempered(logits, targets, np.full(len(targets), self.temperature, np.float32)))

    def of_product(self, product: Product, counts: NDArray[np.intp], targets: NDArray[np.int32]) -> Scores | None:
        """Returns the scores of ``targets`` [M] without making the logits [N, V], which are a product; None where logits are needed.

        counts: [N], how many of the targets each row of logits has.
        """
        if self.top or self.stats or self.temperature not in (None, 0.0, 1.0) or not fused_logprobs.suits(product):
            return None
        scores = fused_logprobs.on_cpu(product, counts, targets, self.greedy)
        return scores if self.temperature is None else replace(scores, tempered=scores.logprobs)

    @property
    def echoed(self) -> str:
        """Names what an echo holds. Options with equal names can share an echo; "" without one."""
        return f"{self.top} {self.stats} {self.greedy} {self.temperature}" if self.echo else ""

    @property
    def nothing(self) -> Scores:
        """Returns the scores of no tokens."""
        ints, floats, k = np.zeros(0, np.int32), np.zeros(0, np.float32), self.top
        tops = (ints.reshape(0, k), floats.reshape(0, k)) if k else (None, None)
        stats, greedy = (ints, floats) if self.stats else (None, None), ints.astype(np.bool_) if self.greedy else None
        return Scores(floats, *tops, *stats, greedy, None if self.temperature is None else floats)
