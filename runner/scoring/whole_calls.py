"""Calls of the model that keep nothing, sent to a GPU one ahead: a batch's states are computed while the scores before are looked at.

device    states 1 | head 1 | states 2 | head 2 | …
host        send 1, head 1, send 2, read 1 | head 2, send 3, read 2 | …
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..core.errors import is_out_of_memory
from ..engine.setup import Setup
from ..scheduler.prefix_tree import Segment
from ..scheduler.score_calls import batch_width, padded_tokens


@dataclass(slots=True, frozen=True)
class Sent:
    """A batch that is under way: its tokens [B, T] and its states [B, T, H], unevaluated."""

    batch: list[Segment]
    tokens: NDArray[np.int32]
    states: mx.array


class WholeCalls:
    """The call under way, if any. A batch has rows and columns of pads where the device shall see few shapes."""

    def __init__(self) -> None:
        self._sent: Sent | None = None

    def clear(self) -> None:
        """Forgets the call under way."""
        self._sent = None

    def take(self, model: Setup, batch: list[Segment]) -> Sent:
        """Returns the batch's call: the one under way, or a new one."""
        sent, self._sent = self._sent, None
        return sent if sent is not None and sent.batch is batch else _send(model, batch)

    def sending(self, model: Setup, batch: list[Segment] | None) -> Callable[[], None]:
        """Returns a function that sends the batch that is taken next, if there is one.

        It asks nobody whether to stop: processes that run a model together must send the same calls. Where memory runs out, nothing is
        sent: the batch under way is not to blame.
        """

        def send() -> None:
            if batch is None:
                return
            try:
                self._sent = _send(model, batch)
            except Exception as error:
                if model.ranks.several or not is_out_of_memory(error):
                    raise
                mx.clear_cache()  # it is sent again when the scores before it are read, and it alone is blamed then

        return send


def _send(model: Setup, batch: list[Segment]) -> Sent:
    tokens = padded_tokens(batch, model.limits.shape(len(batch), batch_width(batch)))
    lengths = [len(segment) for segment in batch] + [0] * (len(tokens) - len(batch))
    states = model.network(tokens, None, lengths=lengths, read="states")
    mx.async_eval(states)
    return Sent(batch, tokens, states)
