"""An engine's input in a group: all ranks are told what the first one gets, at the same step.

The other ranks have no rows of their own: they run the same engine on the same requests, and nobody reads their outcomes.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import mlx.core as mx
import numpy as np

from ...kernels.logprobs import Scores
from ...kernels.sampling.draw import Drawn, Launched
from .ranks import Ranks

Asked = TypeVar("Asked")


class SharedInput(Generic[Asked]):
    """The windows and the end of an engine's run, for all ranks; see ``EngineInterface.run``. The arguments are the first rank's."""

    def __init__(
        self,
        ranks: Ranks,
        next_window: Callable[[bool], list[Asked] | None] = lambda wait: None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self._ranks, self._next_window, self._stopped = ranks, next_window, stopped

    def next_window(self, wait: bool) -> list[Asked] | None:
        """Returns the first rank's next window."""
        if wait:
            return self._ranks.wait_for(lambda: self._next_window(True))
        window = self._next_window(False) if self._ranks.first else []
        return self._ranks.share(window) if self._ranks.flag(window is None or len(window) > 0) else []

    def stopped(self) -> bool:
        """Returns whether the first rank is to stop."""
        return bool(self._ranks.flag(self._ranks.first and self._stopped()))


def shared_draw(launched: Launched, ranks: Ranks) -> Launched:
    """Returns a step's draw with the ids of the first rank, for all ranks."""
    if not ranks.several:
        return launched
    ids = ranks.of_first(launched.ids)
    mx.async_eval(ids)

    def read() -> tuple[Drawn, Scores]:
        drawn, scores = launched.read()
        drawn.ids = np.array(ids)
        return drawn, scores

    return Launched(ids, read)
