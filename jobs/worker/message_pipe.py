"""Messages between two processes of one machine that trust each other: pickles with their lengths, on a socket."""

import pickle
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic

from ...runner.cluster.messages import Message

_LENGTH = 8  # bytes of a message's length
_PIECE = 1 << 20


class MessagePipe:
    """One end of a pipe, a ``Connection``. ``send`` is for any thread, ``receive`` for one."""

    def __init__(self, end: socket.socket):
        self._socket, self._lock = end, threading.Lock()
        self._come = bytearray()
        self._readable = select.poll()
        self._readable.register(end, select.POLLIN)

    def send(self, message: Message) -> None:
        """Sends a message; waits while the other end takes none. A message to an end that is gone is dropped."""
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError), self._lock:
            self._socket.sendall(len(content).to_bytes(_LENGTH, "big") + content)

    def receive(self, timeout: float | None) -> Message | None:
        """Returns the next message; None where ``timeout`` seconds bring none. Raises EOFError when the other end is gone."""
        deadline = None if timeout is None else monotonic() + timeout
        while (message := self._next()) is None:
            left = None if deadline is None else max(0.0, deadline - monotonic()) * 1000
            if not self._readable.poll(left):
                return None
            try:
                piece = self._socket.recv(_PIECE)
            except ConnectionError:
                piece = b""
            if not piece:
                raise EOFError("the other end of the pipe is closed")
            self._come += piece
        return message

    def close_sending(self) -> None:
        """Tells the other end that no more messages come."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _next(self) -> Message | None:
        """Returns the first message that has come in full."""
        end = _LENGTH + int.from_bytes(self._come[:_LENGTH], "big")
        if len(self._come) < max(end, _LENGTH):
            return None
        content = bytes(self._come[_LENGTH:end])
        del self._come[:end]
        return pickle.loads(content)


class DrainedPipe:
    """A ``Connection`` that takes messages in as they come, in a thread, so that the other end never waits to send one.

    gone: called in that thread once the other end is gone.
    """

    def __init__(self, pipe: MessagePipe, gone: Callable[[], None] = lambda: None):
        self._pipe, self._gone = pipe, gone
        self._messages: SimpleQueue[Message | None] = SimpleQueue()
        threading.Thread(target=self._drain, name="messages", daemon=True).start()

    def send(self, message: Message) -> None:
        """Sends a message, as ``MessagePipe``."""
        self._pipe.send(message)

    def receive(self, timeout: float | None) -> Message | None:
        """Returns the next message, as ``MessagePipe``."""
        try:
            message = self._messages.get(timeout=timeout)
        except Empty:
            return None
        if message is None:
            self._messages.put(None)  # for the next call
            raise EOFError("the other end of the pipe is closed")
        return message

    def _drain(self) -> None:
        with suppress(EOFError):
            while True:
                self._messages.put(self._pipe.receive(None))
        self._messages.put(None)
        self._gone()
