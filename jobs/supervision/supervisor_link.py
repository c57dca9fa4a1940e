"""Connects a supervised process to its supervisor: it reports the rows in the model and gets orders from earlier deaths.

Messages are JSON lines on an inherited socket, each with the number of its process: a copy that code of a model or task has forked is
another one. When the supervisor is gone, the process ends as on SIGTERM.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from ...runner.core.host_process import Orders, Supervisor

VARIABLE = "MLX_BULK_SUPERVISOR"  # of the environment: the socket's descriptor


class Link(Supervisor):
    """The connection to the process that started this one. last: called before this process ends since its supervisor is gone."""

    def __init__(self, connection: socket.socket):
        self.last: Callable[[], None] = lambda: None
        self._connection, self._lock = connection, threading.Lock()
        self._lines = connection.makefile("rb")
        self._orders: dict[str, Any] = json.loads(self._lines.readline())
        threading.Thread(target=self._outlive, name="supervisor", daemon=True).start()

    @classmethod
    def inherited(cls) -> Self | None:
        """Returns the connection if a supervisor started this process, else None. Its own children do not inherit it."""
        descriptor = os.environ.pop(VARIABLE, None)
        if descriptor is None:
            return None
        os.set_inheritable(int(descriptor), False)
        return cls(socket.socket(fileno=int(descriptor)))

    def orders(self, run: Path) -> Orders:
        """Returns the orders for the run in the folder ``run``."""
        orders, name = self._orders, str(run)
        suspects = tuple(tuple(group) for group in orders["suspect_groups"].get(name, []))
        return Orders(name in orders["started"], suspects, dict(orders["fatal_rows"].get(name, [])), orders["batch_halvings"].get(name, 0))

    def reading_stdin(self, run: Path) -> None:
        """Reports that the run in the folder ``run`` is about to read its rows from stdin."""
        self._send({"reading": str(run)})

    def begin(self, run: Path, frozen: bool, positions: int) -> None:
        """Reports that the run's start options have had their effect; rows reported from now on are its rows."""
        self._send({"run": str(run), "frozen": frozen, "positions": positions, "rows": []})

    def note_in_flight(self, rows: Iterable[int]) -> None:
        """Reports the rows in the model."""
        self._send({"rows": sorted(rows)})

    def signalled(self, number: int) -> None:
        """Reports a signal that this process got."""
        self._send({"signal": number})

    def ending(self, code: int) -> None:
        """Reports the exit code that the process is about to return: its work is done, whatever happens now."""
        self._send({"code": code, "rows": []})

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError), self._lock:  # the supervisor is gone
            self._connection.sendall(json.dumps({"process": os.getpid(), **message}).encode() + b"\n")

    def _outlive(self) -> None:
        with suppress(OSError):
            self._lines.read()
        self.last()
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def report_exit(link: Link | None) -> Generator[None]:
    """Reports to the supervisor, if there is one, the code with which the block exits the process."""
    try:
        yield
    except SystemExit as error:
        if link is not None and isinstance(error.code, int):
            link.ending(error.code)
        raise
