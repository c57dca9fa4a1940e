"""Which figures of tokens a job asks for, and how they come of logits."""

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
    """Which figures are computed: ``logprobs.prompt``, ``logprobs.top`` and ``logprobs.stats`` of the config.

    ``greedy``: of a scored token, whether it is the most likely one. Of a generated token: ``tempered``, its logprob under
    logits / temperature, ``kept``, the ids that could be drawn, ``reference``, its logprobs under another policy or model.
    ``temperature``: of a scored token, its logprob at it too. ``logprobs``: of a generated token; where they are not, those
    of the distribution sampled from stand for them.
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
        """The figures of ``targets`` [N] under ``logits`` [N, V]."""
        found = score(logits, targets, self.top, self.stats, self.greedy)
        if self.temperature is None:
            return found
        if self.temperature in (0.0, 1.0):
            return replace(found, tempered=found.logprobs)
        return replace(found, tempered=tempered(logits, targets, np.full(len(targets), self.temperature, np.float32)))

    def of_product(self, product: Product, counts: NDArray[np.intp], targets: NDArray[np.int32]) -> Scores | None:
        """The same of ``targets`` [M] under logits [N, V] that are a product, ``counts`` [N] a row; None where it takes the logits."""
        if self.top or self.stats or self.temperature not in (None, 0.0, 1.0) or not fused_logprobs.suits(product):
            return None
        found = fused_logprobs.on_cpu(product, counts, targets, self.greedy)
        return found if self.temperature is None else replace(found, tempered=found.logprobs)

    @property
    def echoed(self) -> str:
        """What an echo holds: equal where one serves in place of the other."""
        return f"{self.top} {self.stats} {self.greedy} {self.temperature}" if self.echo else ""

    @property
    def nothing(self) -> Scores:
        """The figures of no tokens."""
        ints, floats, k = np.zeros(0, np.int32), np.zeros(0, np.float32), self.top
        tops = (ints.reshape(0, k), floats.reshape(0, k)) if k else (None, None)
        stats, greedy = (ints, floats) if self.stats else (None, None), ints.astype(np.bool_) if self.greedy else None
        return Scores(floats, *tops, *stats, greedy, None if self.temperature is None else floats)
