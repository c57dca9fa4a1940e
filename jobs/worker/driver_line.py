"""The agent's line to the driver: a thread that connects, hears, and connects again. What it hears goes into a queue."""

import threading
from dataclasses import dataclass
from queue import SimpleQueue
from time import sleep
from typing import Any, Protocol

from ...runner.cluster.interface import Connection
from ...runner.cluster.messages import Message

_AGAIN_SECONDS = 0.3  # between attempts


class DriverEnd(Connection, Protocol):
    """A connection that can be made again after it was lost."""

    def connect(self) -> None:
        """Connects to the driver. Raises OSError where none is there, ConfigError where it refuses this worker."""
        ...

    def close(self) -> None:
        """Sends what is not sent and closes the connection. For any thread."""
        ...


@dataclass(slots=True, frozen=True)
class DriverFound:
    """The driver is connected. Nothing has been sent on the connection."""


@dataclass(slots=True, frozen=True)
class DriverSaid:
    """A message of the driver."""

    message: Message


@dataclass(slots=True, frozen=True)
class DriverLost:
    """The connection is gone."""


@dataclass(slots=True, frozen=True)
class DriverRefused:
    """No connection will ever be made."""

    error: BaseException


class DriverLine:
    """Keeps ``link`` connected. ``inbox`` gets what happens on it.

    After ``DriverLost`` it connects again once ``go_on`` is called, so that nothing is sent on a new connection by mistake.
    """

    def __init__(self, link: DriverEnd, inbox: "SimpleQueue[Any]"):
        self._link, self._inbox = link, inbox
        self._seen = threading.Event()
        self._closed = False
        threading.Thread(target=self._listen, name="driver", daemon=True).start()

    def send(self, message: Message) -> None:
        """Sends a message to the driver."""
        self._link.send(message)

    def go_on(self) -> None:
        """Lets the line be connected again."""
        self._seen.set()

    def close(self) -> None:
        """Closes the connection for good, after all that was sent."""
        self._closed = True
        self._link.close()

    def _listen(self) -> None:
        try:
            while not self._closed:
                try:
                    self._link.connect()
                except OSError:
                    sleep(_AGAIN_SECONDS)
                    continue
                self._hear()
        except BaseException as error:  # a fault of the settings, or of ours: raised in the agent's thread
            self._inbox.put(DriverRefused(error))

    def _hear(self) -> None:
        self._inbox.put(DriverFound())
        self._seen.clear()
        try:
            while not self._closed:
                if (message := self._link.receive(None)) is not None:
                    self._inbox.put(DriverSaid(message))
        except EOFError:
            self._inbox.put(DriverLost())
            self._seen.wait()
