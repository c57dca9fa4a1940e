"""Runs a command in a second process and starts it again when it dies: Metal aborts it, or the system kills it for memory.

Imports nothing heavy, as this process only waits. ``crash_suspects.py`` draws the conclusions from a death.
"""

import json
import logging
import os
import selectors
import signal
import socket
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any

from ...runner.core.errors import ModelError
from .crash_suspects import Suspects
from .process_reports import Reports
from .signals import heeded
from .supervisor_link import VARIABLE

log = logging.getLogger("mlx_bulk")

FORWARD_SECONDS = 0.4  # for the process to report that it got the signal itself, as from a terminal, which signals all
END_SECONDS = 4.8  # after a signal: the process has ended by then, or is killed

DEATHS = {
    getattr(signal, name) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGKILL", "SIGILL", "SIGFPE", "SIGTRAP") if hasattr(signal, name)
}


def supervise(command: Sequence[str]) -> int:
    """Runs ``command`` until it ends by itself, and returns its exit code (128 + the number of the signal that ended it).

    Forwards signals to the process. Must run in the main thread. Raises ModelError where the process dies again and again.
    """
    suspects = Suspects()
    with _Signals() as signals:
        while True:
            code = _Child(command, suspects).wait(signals)
            if code >= 0:
                return code
            if suspects.code is not None:
                return suspects.code
            if signals.first is not None or -code not in DEATHS:
                return 128 + (signals.first or -code)
            cause, consequence = suspects.record_death(-code)
            # A run that has begun keeps its own copy of stdin.
            if suspects.reading - suspects.started and _holds_input(sys.stdin):
                raise ModelError(f"{cause}; stdin may have been read in part: run the same command again")
            log.warning("%s: %s", cause, consequence)


class _Signals:
    """A context manager that catches SIGINT, SIGTERM, SIGHUP and SIGCHLD. Each makes ``fileno`` readable.

    ``read`` returns the first three.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in (*heeded(), signal.SIGCHLD):
            self._before[number] = signal.signal(number, lambda *_: None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reading.close()
        self._writing.close()

    def fileno(self) -> int:
        return self._reading.fileno()

    def read(self) -> list[int]:
        """Returns the numbers of SIGINT, SIGTERM and SIGHUP that came since the last call, in order."""
        numbers: list[int] = []
        with suppress(BlockingIOError):
            while True:
                numbers += [number for number in self._reading.recv(64) if number != signal.SIGCHLD]
        if numbers and self.first is None:
            self.first = numbers[0]
        return numbers


class _Child:
    """One process, and its messages until it ends."""

    def __init__(self, command: Sequence[str], suspects: Suspects):
        self._suspects = suspects
        self._connection, theirs = socket.socketpair()
        environment = {**os.environ, VARIABLE: str(theirs.fileno())}
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        log.debug("process %d runs the model; this one watches it", self._process.pid)
        with suppress(ConnectionError):  # it is dead already
            self._connection.sendall(json.dumps(suspects.orders).encode() + b"\n")
        self._reports = Reports(self._connection, self._process.pid)
        self._pending: deque[tuple[float, int]] = deque()  # signals that came here: when, and which
        self._end_at: float | None = None

    def wait(self, signals: _Signals) -> int:
        """Waits for the end and returns the exit code, negative for the signal that ended the process."""
        with selectors.DefaultSelector() as selector:
            selector.register(signals, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            while self._process.poll() is None:
                ready = [key.fileobj for key, _ in selector.select(self._due())]
                for number in signals.read():
                    self._pending.append((monotonic(), number))
                    self._end_at = self._end_at or monotonic() + END_SECONDS
                if self._connection in ready and not self._receive():
                    selector.unregister(self._connection)
                self._forward()
        self._receive()
        self._connection.close()
        return self._process.returncode

    def _due(self) -> float | None:
        """Returns the seconds until the next forward or kill is due, None if none is."""
        due = [came + FORWARD_SECONDS for came, _ in self._pending] + ([self._end_at] if self._end_at is not None else [])
        return max(0.0, min(due) - monotonic()) if due else None

    def _receive(self) -> bool:
        """Takes in messages; returns False once the connection is closed."""
        messages, is_open = self._reports.read()
        for message in messages:
            self._suspects.receive(message)
            reported = next((each for each in self._pending if each[1] == message.get("signal")), None)
            if reported is not None:
                self._pending.remove(reported)
        return is_open

    def _forward(self) -> None:
        """Forwards a signal that the process has not reported; kills the process when it takes too long to end."""
        now = monotonic()
        while self._pending and now >= self._pending[0][0] + FORWARD_SECONDS:
            self._process.send_signal(self._pending.popleft()[1])
        if self._end_at is not None and now >= self._end_at:
            self._process.kill()
            self._end_at = now + END_SECONDS


def _holds_input(stdin: Any) -> bool:
    """Returns whether bytes that a process read from ``stdin`` are lost for the next one."""
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return False
    return not stat.S_ISCHR(mode)
