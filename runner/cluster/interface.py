"""The seam between a run and the machines that work on it: messages go to workers, events come from them.

``Fleet`` is the driver's end. ``Connection`` is one end of a pipe: between a worker's agent and its engine process, and between the
agent and the driver. Does not know what the messages mean.
"""

from dataclasses import dataclass
from typing import Protocol

from .messages import FromWorker, Hello, Message, ToWorker


@dataclass(slots=True, frozen=True)
class Joined:
    """A worker has connected, for the first time or again. What was sent to an earlier connection of it may be lost."""

    worker: str
    hello: Hello


@dataclass(slots=True, frozen=True)
class Left:
    """A worker's connection is gone. reason: in words, for people. in_order: the worker has closed it itself, as it leaves."""

    worker: str
    reason: str
    in_order: bool = False


@dataclass(slots=True, frozen=True)
class Told:
    """A message of a worker."""

    worker: str
    message: FromWorker


Event = Joined | Left | Told


ORPHAN_SECONDS = 15.0
"""How long a worker that a driver started for itself alone waits for it. The next driver listens elsewhere, and starts its own."""


class Fleet(Protocol):
    """The workers of a run, as the driver sees them. All methods are for one thread."""

    def workers(self) -> list[str]:
        """Returns the names of the workers that are connected now."""
        ...

    def send(self, worker: str, message: ToWorker) -> None:
        """Sends a message without waiting. It is lost where the worker has left; ``Left`` tells."""
        ...

    def events(self, timeout: float) -> list[Event]:
        """Returns what has happened since the last call; waits ``timeout`` seconds for the first event.

        Events of one worker come in their order. Between two ``Joined`` of a worker stands a ``Left``.
        """
        ...

    def end(self, dismiss: bool) -> None:
        """Closes the connections. dismiss: workers end, too; else they wait for the next driver."""
        ...


class Connection(Protocol):
    """One end of a pipe of messages. ``send`` is for any thread, ``receive`` for one."""

    def send(self, message: Message) -> None:
        """Sends a message; waits while the other end takes none. A message to an end that is gone is dropped."""
        ...

    def receive(self, timeout: float | None) -> Message | None:
        """Returns the next message; None where ``timeout`` seconds bring none. Raises EOFError when the other end is gone."""
        ...
