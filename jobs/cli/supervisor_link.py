"""The end of a supervised process: it says which rows the model has, and hears what happened to those before it.

JSON lines on a socket that the supervisor handed down. When the supervisor is gone, the process ends as on SIGTERM.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from ...runner.core.host_process import Orders, Supervisor

VARIABLE = "MLX_BULK_SUPERVISOR"  # of the environment: the socket's descriptor


class Link(Supervisor):
    """The connection to the process that started this one."""

    def __init__(self, connection: socket.socket):
        self._connection, self._lock = connection, threading.Lock()
        self._lines = connection.makefile("rb")
        self._orders: dict[str, Any] = json.loads(self._lines.readline())
        threading.Thread(target=self._outlive, name="supervisor", daemon=True).start()

    @classmethod
    def inherited(cls) -> Self | None:
        """The connection, if this process was started by a supervisor; processes that it starts are not."""
        descriptor = os.environ.pop(VARIABLE, None)
        if descriptor is None:
            return None
        os.set_inheritable(int(descriptor), False)
        return cls(socket.socket(fileno=int(descriptor)))

    def orders(self, run: Path) -> Orders:
        """What is known of the run in the folder ``run``."""
        known, name = self._orders, str(run)
        apart = tuple(tuple(group) for group in known["apart"].get(name, []))
        return Orders(name in known["begun"], apart, dict(known["fatal"].get(name, [])), known["halved"].get(name, 0))

    def reading_stdin(self, run: Path) -> None:
        """Says that the run in the folder ``run`` is about to read its rows from stdin."""
        self._say({"reading": str(run)})

    def begin(self, run: Path, frozen: bool, positions: int) -> None:
        """Says that the run's start options have had their effect, and that the rows told from now on are its."""
        self._say({"run": str(run), "frozen": frozen, "positions": positions, "rows": []})

    def flight(self, rows: Iterable[int]) -> None:
        """Says which rows the model has from now on."""
        self._say({"rows": sorted(rows)})

    def signalled(self, number: int) -> None:
        """Says that a signal has come here."""
        self._say({"signal": number})

    def ending(self, code: int) -> None:
        """Says what the process is about to return: whatever happens to it now, its work is done."""
        self._say({"code": code, "rows": []})

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(OSError), self._lock:  # nobody hears it any more
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _outlive(self) -> None:
        with suppress(OSError):
            self._lines.read()
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def report_exit(link: Link | None) -> Generator[None]:
    """Says to the supervisor, if there is one, with which code the process ends."""
    try:
        yield
    except SystemExit as error:
        if link is not None and isinstance(error.code, int):
            link.ending(error.code)
        raise
