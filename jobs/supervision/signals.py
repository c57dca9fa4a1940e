"""Ends a run on SIGINT, SIGTERM or SIGHUP between two steps, or within seconds in a long step, so that finished rows are safe.

Python runs a handler only after the main thread returns from the model's step. So a second thread, the watcher, reads the wakeup
file descriptor, which gets a byte at each signal. If the step takes too long, it saves finished rows and ends the process. Knows no run.
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
SAVE_SECONDS = 1.2  # for the watcher to save finished rows while the step goes on
ECHO_SECONDS = 1.0  # in which a second SIGTERM is the first one's: GNU timeout sends it to its child, and then to the whole group
WORD_SECONDS = 0.2  # for a message: a terminal may be stopped, a pipe full

_T = TypeVar("_T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_entered: "list[Stop]" = []  # those whose blocks this process is in


def heeded() -> tuple[signal.Signals, ...]:
    """Returns those of SIGNALS that end a run: SIGHUP does not where the process was started to ignore it (``nohup``)."""
    return tuple(number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN)


class Stop:
    """A context manager in which SIGINT, SIGTERM and SIGHUP ask the run to end between two steps; a later second signal ends it at once.

    Files on disk stay whole either way. Before the first step there is nothing to save: reading the input or loading the model is
    broken off. The process ends within 5 seconds in any case. After ``finish`` there is nothing to save either, and the run's own
    code is returned. ``on_signal`` is called with each signal; ``command`` continues the run. Does nothing outside the main thread.
    """

    def __init__(self, on_signal: Callable[[int], None] = lambda number: None, command: str = "the same command") -> None:
        self.code = 0
        self._command = command
        self._on_signal = on_signal
        self._stepping = False
        self._finished: int | None = None
        self._requested = threading.Event()
        self._handled = threading.Event()  # the main thread has seen the signal
        self._ended = threading.Event()
        self._save: Callable[[], bool] | None = None
        self._before: dict[int, Any] = {}
        self._wakeup = -1
        self._ends = -1, -1
        self._echoes_end = 0.0
        self._watcher = threading.Thread(target=self._watch, name="signals", daemon=True)

    @property
    def begun(self) -> bool:
        """True while the run does its steps: what was finished is kept."""
        return self._stepping

    def requested(self) -> bool:
        """Returns whether a signal has come. The first call marks that the run begins its steps."""
        self._stepping = True
        return self._requested.is_set()

    def finish(self, code: int) -> None:
        """Marks the run as complete: the process returns ``code`` even if a signal then cuts its closing text short."""
        self._stepping, self._finished = False, code

    @contextmanager
    def saving(self, save: Callable[[], bool]) -> Generator[None]:
        """Registers ``save`` for the block: the watcher calls it, from its thread, before it ends a process in a long step.

        ``save`` returns whether all finished rows are safe.
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
            self._before = {number: signal.signal(number, self._take) for number in heeded()}
            self._watcher.start()
            _entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        _entered.remove(self)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._ended.set()
        with suppress(BlockingIOError):  # full: it has something to read
            os.write(self._ends[1], b"\0")
        self._watcher.join()
        for end in self._ends:
            os.close(end)

    def leave_in_child(self) -> None:
        """Puts the handlers of before back in a forked process. Its signals are its own: it would tell them to this run's watcher."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    # ------------------------------------------------------------------------------------------------ the main thread

    def _take(self, number: int, _frame: FrameType | None) -> None:
        """Notes the signal. Messages and the end are the watcher's, as this may interrupt a write to the terminal."""
        if self.code:
            return
        self.code = 128 + number
        if self._stepping:
            self._requested.set()
        self._handled.set()
        if not self._stepping:
            raise KeyboardInterrupt

    # ----------------------------------------------------------------------------------------------------- the watcher

    def _watch(self) -> None:
        """Counts signals as they come: the second ends the process at once, the first after GRACE_SECONDS."""
        first = self._next_signal(None)
        if first is None:
            return
        self._echoes_end = monotonic() + ECHO_SECONDS
        deadline = monotonic() + GRACE_SECONDS
        _within(WORD_SECONDS, lambda: self._on_signal(first))
        self._handled.wait(WORD_SECONDS)
        # Two signals sent at once arrive in either order: the lower number goes first, as with Python's handlers.
        come = sorted(number for number in (first, self._next_signal(0.0, first)) if number is not None)
        if self._stepping and log.isEnabledFor(logging.WARNING):  # not with --quiet
            _say(f"{signal.Signals(come[0]).name}: finishing this step and saving (again: stop at once)")
        second = come[1] if len(come) > 1 else self._next_signal(deadline, first)
        if second is not None:
            os._exit(128 + second if self._finished is None else self._finished)
        if not self._ended.is_set():
            self._end(first)

    def _next_signal(self, deadline: float | None, first: int | None = None) -> int | None:
        """Waits for the next of SIGNALS; returns None when the block has ended, or at ``deadline``.

        After a ``first`` SIGHUP no other one counts: the system sends two where a terminal closes. After a ``first`` SIGTERM none counts
        for ECHO_SECONDS.
        """
        reading, _ = self._ends
        while not self._ended.is_set():
            if deadline is not None and not _readable(reading, deadline - monotonic()):
                return None
            for number in os.read(reading, 1):
                if number in SIGNALS and not (number == first and self._is_echo(number)):
                    return number
        return None

    def _is_echo(self, number: int) -> bool:
        return number == signal.SIGHUP or (number == signal.SIGTERM and monotonic() < self._echoes_end)

    def _end(self, number: int) -> None:
        """Saves finished rows, as far as time allows, and ends the process, unless it ends by itself meanwhile."""
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


def _leave_in_child() -> None:
    while _entered:
        _entered.pop().leave_in_child()


os.register_at_fork(after_in_child=_leave_in_child)  # lm-eval forks processes for bootstrapped errors, and ends them by SIGTERM


def interrupted(command: str) -> str:
    """Returns the message of a start that ended before there was anything to save; ``command`` continues the run."""
    return f"interrupted before the first step of this session; nothing was lost, {command} continues"


def _say(text: str) -> None:
    _within(WORD_SECONDS, lambda: click.echo(f"\nmlx-bulk: {text}", err=True))


def _readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], max(0.0, seconds))[0])


def _within(seconds: float, work: Callable[[], _T], ended: threading.Event | None = None) -> _T | None:
    """Runs ``work`` in a thread and returns its result; None if it fails or takes more than ``seconds``. Stops waiting once ``ended``."""
    results: list[_T] = []

    def run() -> None:
        with suppress(Exception):  # the process ends: nobody is left to report it to
            results.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = monotonic() + seconds
    while thread.is_alive() and (left := deadline - monotonic()) > 0 and not (ended is not None and ended.is_set()):
        thread.join(left if ended is None else min(left, 0.05))
    return results[0] if results else None
