"""Whose turn it is to be sent something: few workers at a time, so that little is on the way. Does not know what is sent."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

PLACE_SECONDS = 10.0  # after which a worker that asks for nothing more keeps no place among those that are served

_T = TypeVar("_T")


class Turns(Generic[_T]):
    """Serves workers in the order in which they ask, ``at_once`` at a time. For one thread.

    serve: is called with a worker and what it wants; returns True where something is on the way then, which keeps the worker's place
    until it asks again or is forgotten.
    """

    def __init__(self, at_once: int, serve: Callable[[str, _T], bool], clock: Callable[[], float] = monotonic):
        self._at_once, self._serve, self._clock = at_once, serve, clock
        self._on_the_way: dict[str, float] = {}  # since when, by worker
        self._waiting: deque[tuple[str, _T]] = deque()

    def answer(self, worker: str, wanted: _T) -> None:
        """Serves the worker, now or when its turn comes. What it got before has arrived."""
        self.forget(worker)
        self._waiting.append((worker, wanted))
        self._go_on()

    def forget(self, worker: str) -> None:
        """Forgets what a worker wants, which has left, has all, or asks anew."""
        self._on_the_way.pop(worker, None)
        self._waiting = deque(each for each in self._waiting if each[0] != worker)
        self._go_on()

    def look(self) -> None:
        """Gives the places of workers that have fallen silent to others that wait."""
        if self._waiting:
            due = self._clock() - PLACE_SECONDS
            self._on_the_way = {worker: since for worker, since in self._on_the_way.items() if since > due}
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._on_the_way) < self._at_once:
            worker, wanted = self._waiting.popleft()
            if self._serve(worker, wanted):
                self._on_the_way[worker] = self._clock()
