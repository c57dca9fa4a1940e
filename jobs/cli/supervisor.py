"""Runs a command in a process of its own and starts it again when it dies: Metal aborts the process, the system kills it for memory.

Imports nothing heavy: this process waits beside the one that does the work. What a death means is ``suspects.py``'s.
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
from .supervisor_link import VARIABLE

log = logging.getLogger("mlx_bulk")

FORWARD_SECONDS = 0.4  # in which the process says that it got a signal itself: from the terminal, say, which tells everybody
END_SECONDS = 4.8  # after a signal: the process has ended by itself by then, or is ended

DEATHS = {
    getattr(signal, name) for name in ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGKILL", "SIGILL", "SIGFPE", "SIGTRAP") if hasattr(signal, name)
}


def supervise(command: Sequence[str]) -> int:
    """Runs ``command`` until it ends by itself, and returns its exit code (128 + the number of the signal that ended it).

    A signal that comes here is the process's too. For the main thread. Raises ModelError where the process dies again and again.
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
            cause, consequence = suspects.died(-code)
            # A run that has begun keeps its own copy of what came in there.
            if suspects.reading - suspects.begun and _holds_input(sys.stdin):
                raise ModelError(f"{cause}; stdin may have been read in part: run the same command again")
            log.warning("%s: %s", cause, consequence)


class _Signals:
    """A context manager that takes SIGINT, SIGTERM and SIGCHLD; ``came`` gives the first two, and ``fileno`` is readable with each."""

    def __init__(self) -> None:
        self.first: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
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

    def came(self) -> list[int]:
        """The numbers of SIGINT and SIGTERM as they have come since the last call."""
        numbers: list[int] = []
        with suppress(BlockingIOError):
            while True:
                numbers += [number for number in self._reading.recv(64) if number != signal.SIGCHLD]
        if numbers and self.first is None:
            self.first = numbers[0]
        return numbers


class _Child:
    """One process, and what it says until it ends."""

    def __init__(self, command: Sequence[str], suspects: Suspects):
        self._suspects = suspects
        self._connection, theirs = socket.socketpair()
        environment = {**os.environ, VARIABLE: str(theirs.fileno())}
        self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        log.debug("process %d runs the model; this one watches it", self._process.pid)
        with suppress(ConnectionError):  # it is dead already
            self._connection.sendall(json.dumps(suspects.orders).encode() + b"\n")
        self._connection.setblocking(False)
        self._half = b""  # of a line
        self._unheard: deque[tuple[float, int]] = deque()  # signals that came here: when, and which
        self._end_at: float | None = None

    def wait(self, signals: _Signals) -> int:
        """The exit code, negative for the signal that ended it."""
        with selectors.DefaultSelector() as selector:
            selector.register(signals, selectors.EVENT_READ)
            selector.register(self._connection, selectors.EVENT_READ)
            while self._process.poll() is None:
                ready = [key.fileobj for key, _ in selector.select(self._due())]
                for number in signals.came():
                    self._unheard.append((monotonic(), number))
                    self._end_at = self._end_at or monotonic() + END_SECONDS
                if self._connection in ready and not self._hear():
                    selector.unregister(self._connection)
                self._forward()
        self._hear()
        self._connection.close()
        return self._process.returncode

    def _due(self) -> float | None:
        """Seconds until something is to be done though nothing comes."""
        due = [came + FORWARD_SECONDS for came, _ in self._unheard] + ([self._end_at] if self._end_at is not None else [])
        return max(0.0, min(due) - monotonic()) if due else None

    def _hear(self) -> bool:
        """Takes in what was said; False when nothing more will be."""
        try:
            while piece := self._connection.recv(1 << 16):
                *lines, self._half = (self._half + piece).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    self._suspects.hear(message)
                    heard = next((signal for signal in self._unheard if signal[1] == message.get("signal")), None)
                    if heard is not None:
                        self._unheard.remove(heard)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        return False

    def _forward(self) -> None:
        """Sends on a signal that the process has not got; ends the process when it takes too long to end."""
        now = monotonic()
        while self._unheard and now >= self._unheard[0][0] + FORWARD_SECONDS:
            self._process.send_signal(self._unheard.popleft()[1])
        if self._end_at is not None and now >= self._end_at:
            self._process.kill()
            self._end_at = now + END_SECONDS


def _holds_input(stdin: Any) -> bool:
    """Whether a process may have read something from ``stdin`` that the next one will not find there."""
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return False
    return not stat.S_ISCHR(mode)
