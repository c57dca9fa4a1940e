"""Signals: SIGINT and SIGTERM end a run between two steps, so that finished rows are safe, and within seconds also in a long step.

Python runs a handler only when the main thread is back from the model's step. So a thread watches the file descriptor that is
written to the moment a signal comes; when the step takes too long, it saves what is finished and ends the process. Knows no run.
"""

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

import click

log = logging.getLogger("mlx_bulk")

GRACE_SECONDS = 3.0  # for the step to end and the run to save by itself
SAVE_SECONDS = 1.2  # for what is finished to be saved beside a step that does not end
WORD_SECONDS = 0.2  # for anything that is said: a terminal may be stopped, a pipe full

_T = TypeVar("_T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """A context manager in which SIGINT and SIGTERM ask the run to end between two steps; a second one ends it at once (what is
    on disk stays right).

    Before the first step there is nothing to save: reading the input or loading the model is broken off. The process ends within
    5 seconds in any case. After ``finished`` there is nothing to save either, and the run's own code is returned. ``told`` is called
    with each signal; ``command`` is the one that continues the run. Does nothing outside the main thread.
    """

    def __init__(self, told: Callable[[int], None] = lambda number: None, command: str = "the same command") -> None:
        self.code = 0
        self._command = command
        self._told = told
        self._stepping = False
        self._finished: int | None = None
        self._asked = threading.Event()
        self._taken = threading.Event()  # the main thread has seen the signal
        self._ended = threading.Event()
        self._save: Callable[[], bool] | None = None
        self._before: dict[int, Any] = {}
        self._wakeup = -1
        self._ends = -1, -1
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)

    def asked(self) -> bool:
        """True once a signal has come; who asks for the first time is about to take a step."""
        self._stepping = True
        return self._asked.is_set()

    def finished(self, code: int) -> None:
        """The run is complete and returns ``code``, whatever comes: a first signal breaks off what is still said of it."""
        self._stepping, self._finished = False, code

    @contextmanager
    def saving(self, save: Callable[[], bool]) -> Generator[None]:
        """Within the block, ``save`` is called from another thread before a process ends whose step takes too long.

        It says whether all that was finished is safe.
        """
        self._save = save
        try:
            yield
        finally:
            self._save = None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._ends = os.pipe()
            os.set_blocking(self._ends[1], False)
            self._wakeup = signal.set_wakeup_fd(self._ends[1], warn_on_full_buffer=False)
            self._before = {number: signal.signal(number, self._take) for number in SIGNALS}
            self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._ended.set()
        with suppress(BlockingIOError):  # full: it has something to read
            os.write(self._ends[1], b"\0")
        self._watcher.join()
        for end in self._ends:
            os.close(end)

    # ------------------------------------------------------------------------------------------------ the main thread

    def _take(self, number: int, _frame: FrameType | None) -> None:
        """Says nothing and ends nothing, which is the watcher's: it may have come in the middle of a write to the terminal."""
        if self.code:
            return
        self.code = 128 + number
        if self._stepping:
            self._asked.set()
        self._taken.set()
        if not self._stepping:
            raise KeyboardInterrupt

    # ----------------------------------------------------------------------------------------------------- the watcher

    def _watch(self) -> None:
        """Counts signals as they come: the second ends the process at once, GRACE_SECONDS after the first it ends as well."""
        first = self._next_signal(None)
        if first is None:
            return
        deadline = monotonic() + GRACE_SECONDS
        _within(WORD_SECONDS, lambda: self._told(first))
        self._taken.wait(WORD_SECONDS)
        # Two that are sent at once are written in either order: the lower number goes first, as with Python's handlers.
        come = sorted(number for number in (first, self._next_signal(0.0)) if number is not None)
        if self._stepping and log.isEnabledFor(logging.WARNING):  # not with --quiet
            _say(f"{signal.Signals(come[0]).name}: finishing this step and saving (again: stop at once)")
        second = come[1] if len(come) > 1 else self._next_signal(deadline)
        if second is not None:
            os._exit(128 + second if self._finished is None else self._finished)
        if not self._ended.is_set():
            self._end(first)

    def _next_signal(self, deadline: float | None) -> int | None:
        """The next of SIGNALS; None when the block has ended, or at ``deadline``."""
        reading, _ = self._ends
        while not self._ended.is_set():
            if deadline is not None and not _readable(reading, deadline - monotonic()):
                return None
            for number in os.read(reading, 1):
                if number in SIGNALS:
                    return number
        return None

    def _end(self, number: int) -> None:
        """Saves what is finished, as far as that can be done in time, and ends the process; unless it ends by itself meanwhile."""
        save = self._save
        saved = save is None or bool(_within(SAVE_SECONDS, save, self._ended))
        if self._ended.is_set():
            return
        name = signal.Signals(number).name
        if self._finished is not None:
            _say(f"{name}: the run is complete; its report takes too long and is left out (mlx-bulk report writes it)")
            os._exit(self._finished)
        if not self._stepping:
            text = interrupted(self._command)
        elif saved:
            text = f"{name}: the step takes too long and is broken off; finished rows are safe, {self._command} continues"
        else:
            text = f"{name}: neither the step nor the disk got ready; rows finished in the last seconds are done again by {self._command}"
        _say(text)
        os._exit(128 + number)


def interrupted(command: str) -> str:
    """What is said of a start that was broken off before there was anything to save; ``command`` continues the run."""
    return f"interrupted before the first step of this session; nothing was lost, {command} continues"


def _say(text: str) -> None:
    _within(WORD_SECONDS, lambda: click.echo(f"\nmlx-bulk: {text}", err=True))


def _readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], max(0.0, seconds))[0])


def _within(seconds: float, work: Callable[[], _T], ended: threading.Event | None = None) -> _T | None:
    """What ``work``, done in a thread, returns; None if that takes more than ``seconds``, or fails. Waits no longer once ``ended``."""
    found: list[_T] = []

    def run() -> None:
        with suppress(Exception):  # the process ends: nobody is left to be told
            found.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = monotonic() + seconds
    while thread.is_alive() and (left := deadline - monotonic()) > 0 and not (ended is not None and ended.is_set()):
        thread.join(left if ended is None else min(left, 0.05))
    return found[0] if found else None
