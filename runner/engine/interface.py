"""The interface of an engine: windows of requests in, outcomes out.

Does not load mlx, and knows no model: a job names the engine, a session runs it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ..core.outcomes import Outcome
from ..core.progress import Progress

Asked = TypeVar("Asked")


class EngineInterface(Protocol):
    """Runs requests through a model: the engine for completions, the scorer for logprobs."""

    @property
    def progress(self) -> Progress:
        """Counts since the start."""
        ...

    @property
    def live(self) -> bool:
        """True when newer policies may replace the model's weights while it runs."""
        ...

    @property
    def version(self) -> int | None:
        """The version of the policy that samples now; None for a model without policies."""
        ...

    def newest_version(self) -> int:
        """Returns the version of the trainer's newest policy, 0 for a model without policies. For any thread."""
        ...

    def run(self, next_window: Callable[[bool], list[Any] | None], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        """Yields the outcomes of all windows' requests in the order in which they finish; ends early when ``stopped``.

        next_window(wait): the next requests, an empty list while none are ready (unless ``wait``), None after the last.
        """
        ...


class FixedWeights:
    """Base of engines whose model never changes: there are no policies."""

    @property
    def live(self) -> bool:
        """False: no policy comes."""
        return False

    @property
    def version(self) -> int | None:
        """None: there are no policies."""
        return None

    def newest_version(self) -> int:
        """Returns 0: there are no policies."""
        return 0


def one_window(requests: Sequence[Asked]) -> Callable[[bool], list[Asked] | None]:
    """Returns the ``next_window`` of ``EngineInterface.run`` that gives all requests in one window."""
    windows = iter([list(requests)])
    return lambda wait: next(windows, None)
