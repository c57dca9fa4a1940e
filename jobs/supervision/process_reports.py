"""Reads what a supervised process reports of itself (see ``supervisor_link.py``): JSON lines on a socket.

Other lines are dropped: of a copy that the process has forked, or whatever code of a model or a task has written there.
"""

import json
import socket
from typing import Any


class Reports:
    """The reports of the process ``pid``. Makes the connection non-blocking."""

    def __init__(self, connection: socket.socket, pid: int):
        connection.setblocking(False)
        self._connection, self._pid = connection, pid
        self._half = b""  # the begun line

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the messages that have come, and False once the connection is closed."""
        messages: list[dict[str, Any]] = []
        try:
            while piece := self._connection.recv(1 << 16):
                *lines, self._half = (self._half + piece).split(b"\n")
                messages += [message for line in lines if (message := _message(line)).get("process") == self._pid]
        except BlockingIOError:
            return messages, True
        except ConnectionError:
            return messages, False
        return messages, False


def _message(line: bytes) -> dict[str, Any]:
    """Returns the message in a line; empty where there is none."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
