"""Counts an engine's work and names its current step, for those who watch it. Does not load mlx."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True)
class Activity:
    """The current step of a session, in words, and its start (``monotonic`` seconds). Other threads may read it."""

    now: str = "waiting for input"
    since: float = field(default_factory=monotonic)

    def doing(self, what: str) -> None:
        """Notes the start of a step; the heartbeat prints it when no other follows for long."""
        self.now, self.since = what, monotonic()


@dataclass(slots=True)
class Progress:
    """Counts the work of an engine since its start, and passes on what it does to whoever watches it.

    Counts are tokens, except ``steps`` (of decoding) and ``slot_steps`` (rows x steps there was room for). ``prefilled``: tokens that
    went through the model in prefills; ``padded``: those with their pads. ``scored``: tokens of passages that have their logprob.
    A row that starts again after a shortage of memory counts once in ``prompt``, ``generated`` and ``scored``; the other counts
    hold all work, also what was thrown away.

    note_in_flight: called with all rows that the model has, before it takes new ones.
    """

    prompt: int = 0
    prefilled: int = 0
    padded: int = 0
    generated: int = 0
    scored: int = 0
    steps: int = 0
    slot_steps: int = 0
    activity: Activity = field(default_factory=Activity)
    note_in_flight: Callable[[Iterable[int]], None] = lambda rows: None

    def doing(self, what: str) -> None:
        """Notes the start of a step."""
        self.activity.doing(what)

    def report_to(self, activity: Activity, note_in_flight: Callable[[Iterable[int]], None]) -> None:
        """Notes steps in ``activity``, and the model's rows with ``note_in_flight``, from now on. Call it before the engine runs."""
        self.activity, self.note_in_flight = activity, note_in_flight
