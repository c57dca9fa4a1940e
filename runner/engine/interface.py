"""The interface of an engine: what it is given, what it yields, and what others may read of it while it works.

Does not load mlx, and knows no model: a job names the engine, a session runs it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

from ..core.requests import Outcome

Asked = TypeVar("Asked")


@dataclass(slots=True)
class Activity:
    """What a session is doing now, in words, and since when (``monotonic`` seconds). Other threads may read it."""

    now: str = "waiting for input"
    since: float = field(default_factory=monotonic)

    def doing(self, what: str) -> None:
        """Notes the start of a step; the heartbeat prints it when no other follows for long."""
        self.now, self.since = what, monotonic()


@dataclass(slots=True)
class Progress:
    """Counts the work of an engine since its start, and passes on what it does to whoever watches it.

    Counts are tokens, except ``steps`` (of decoding) and ``places`` (rows x steps there was room for). ``prefilled``: tokens that
    went through the model in prefills; ``padded``: those with their pads. ``scored``: tokens of passages that have their logprob.
    A row that starts again after a shortage of memory counts once in ``prompt``, ``generated`` and ``scored``; the other counts
    hold all work, also what was thrown away.

    flight: called with all rows that the model has, before it takes new ones.
    """

    prompt: int = 0
    prefilled: int = 0
    padded: int = 0
    generated: int = 0
    scored: int = 0
    steps: int = 0
    places: int = 0
    activity: Activity = field(default_factory=Activity)
    flight: Callable[[Iterable[int]], None] = lambda rows: None

    def doing(self, what: str) -> None:
        """Notes the start of a step."""
        self.activity.doing(what)

    def report_to(self, activity: Activity, flight: Callable[[Iterable[int]], None]) -> None:
        """Notes steps in ``activity``, and the model's rows with ``flight``, from now on. Call it before the engine runs."""
        self.activity, self.flight = activity, flight


class Runs(Protocol):
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
    """Returns the ``next_window`` of ``Runs.run`` that gives all requests in one window."""
    windows = iter([list(requests)])
    return lambda wait: next(windows, None)
