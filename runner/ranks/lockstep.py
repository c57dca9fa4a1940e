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


_STOP, _READY = 1, 2  # bits of what the first rank tells at each step


class SharedInput(Generic[Asked]):
    """The windows and the end of an engine's run, for all ranks; see ``EngineInterface.run``. The arguments are the first rank's.

    Exchanges cost time, so one at each step tells both: whether to stop, and whether a window is there.
    """

    def __init__(
        self,
        ranks: Ranks,
        next_window: Callable[[bool], list[Asked] | None] = lambda wait: None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self._ranks, self._next_window, self._stopped = ranks, next_window, stopped
        self._ready = False  # the first rank holds a window, or knows that there is no more
        self._held: list[Asked] | None = None

    def next_window(self, wait: bool) -> list[Asked] | None:
        """Returns the first rank's next window."""
        if not self._ranks.several:
            return self._next_window(wait)
        if self._ready:
            self._ready = False
            return self._ranks.share(self._held)
        return self._ranks.wait_for(lambda: self._next_window(True)) if wait else []

    def stopped(self) -> bool:
        """Returns whether the first rank is to stop. Asked once a step."""
        if not self._ranks.several:
            return self._stopped()
        told = self._ranks.flag(self._told() if self._ranks.first else 0)
        self._ready = bool(told & _READY)
        return bool(told & _STOP)

    def _told(self) -> int:
        """Looks at the first rank's input."""
        if self._ready:
            return _READY | _STOP * self._stopped()
        self._held = self._next_window(False)
        return _READY * (self._held is None or len(self._held) > 0) | _STOP * self._stopped()


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
