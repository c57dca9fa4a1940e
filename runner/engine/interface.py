"""TODO"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol, TypeVar

from ..core.requests import Outcome

Asked = TypeVar("Asked")


@dataclass(slots=True)
class Progress:
    """Counts since the start, in tokens but for ``steps`` (of decoding) and ``places`` (rows x steps there was room for).

    ``prefilled`` are the tokens that went through the model in prefills, ``padded`` the same with pads. ``scored`` are tokens
    of passages that have got their logprob. Rows that start again, as memory ran out, count once in ``prompt``, ``generated`` and
    ``scored``; the others hold all work, what is thrown away too. ``flight`` is called with all rows that the model has, before it
    takes new ones.
    """

    prompt: int = 0
    prefilled: int = 0
    padded: int = 0
    generated: int = 0
    scored: int = 0
    steps: int = 0
    places: int = 0
    flight: Callable[[Iterable[int]], None] = lambda rows: None
    now: str = "waiting for input"
    since: float = field(default_factory=monotonic)

    def doing(self, what: str) -> None:
        """Says what the engine does from now on; the heartbeat prints it when nothing else happens for long."""
        self.now, self.since = what, monotonic()


class Runs(Protocol):
    """What runs requests through a model: the engine for completions, the scorer for logprobs."""

    @property
    def progress(self) -> Progress:
        """Counts since the start."""
        ...

    def run(self, next_window: Callable[[bool], list[Any] | None], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        """Outcomes of all windows' requests, in the order in which they finish; ends early when ``stopped``."""
        ...


def one_window(requests: Sequence[Asked]) -> Callable[[bool], list[Asked] | None]:
    """Returns the ``next_window`` of ``Runs.run`` that gives all requests in one window."""
    windows = iter([list(requests)])
    return lambda wait: next(windows, None)
