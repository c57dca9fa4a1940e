"""The engine's process, as its agent sees it: started, talked to, and ended. What it says goes into a queue.

It has two sockets: one for messages, one for the reports of ``supervisor_link.py``, from which ``Suspects`` knows the rows in the
model when it dies.
"""

import json
import logging
import os
import select
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from ...runner.cluster.messages import Frames, Message
from ..supervision.crash_suspects import Suspects
from ..supervision.process_reports import Reports
from ..supervision.supervisor_link import VARIABLE
from .message_pipe import MessagePipe
from .other_ranks import OtherRanks

log = logging.getLogger("mlx_bulk")

FOLDER = "MLX_BULK_ENGINE_FOLDER"  # names the folder for temporary files of the engine's process

_KILL_SECONDS = 2.0  # for a process to be gone after SIGKILL: its folder is removed then
_LOOK_SECONDS = 0.5  # a copy that the process has forked may keep its sockets open


@dataclass(slots=True, frozen=True)
class EngineSaid:
    """A message of an engine's process."""

    engine: "EngineProcess"
    message: Message


@dataclass(slots=True, frozen=True)
class EngineEnded:
    """An engine's process has ended; all that it said came before. code: negative for the signal that ended it.

    who: the process to blame. fault: of a machine or the network, in words, where that ended a group: no row is to blame.
    """

    engine: "EngineProcess"
    code: int
    who: str = "the engine's process"
    fault: str = ""


class EngineProcess:
    """A process that runs ``command`` with the number of its message socket behind it. ``inbox`` gets what it says.

    After each ``Frames`` nothing more is taken from it until ``go_on`` is called. suspects: learn the rows in the model; they are
    for this object alone until ``EngineEnded``. others: the further ranks of a group, which end with this process and it with them.

    What the process writes to its temporary folder is removed with it, however it ends.
    """

    def __init__(self, command: Sequence[str], suspects: Suspects, inbox: "SimpleQueue[Any]", others: OtherRanks | None = None):
        self._inbox, self._suspects, self._others = inbox, suspects, others
        self._room = threading.Event()
        self._folder = TemporaryDirectory(prefix="mlx-bulk-worker-", ignore_cleanup_errors=True)
        ours, theirs = socket.socketpair()
        reports, link = socket.socketpair()
        self._process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            env={**(os.environ if others is None else others.environment), VARIABLE: str(link.fileno()), FOLDER: self._folder.name},
            pass_fds=[theirs.fileno(), link.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a signal from the terminal is for the agent, which ends it in order
        )
        theirs.close()
        link.close()
        if others is not None:
            others.watch(self._process)
        log.debug("process %d runs the engine", self._process.pid)
        with suppress(ConnectionError):  # it is dead already
            reports.sendall(json.dumps(suspects.orders).encode() + b"\n")
        self._pipe, self._link = MessagePipe(ours), reports
        self._reports = threading.Thread(target=self._read_reports, name="reports", daemon=True)
        self._reports.start()
        threading.Thread(target=self._read, name="engine", daemon=True).start()

    def send(self, message: Message) -> None:
        """Sends a message to the engine."""
        self._pipe.send(message)

    def go_on(self) -> None:
        """Lets more frames come."""
        self._room.set()

    def end(self) -> None:
        """Asks the process to end: no more messages come for it."""
        self._pipe.close_sending()

    def kill(self) -> None:
        """Ends the process at once, and removes its folder."""
        self._process.kill()
        if self._others is not None:
            self._others.kill()
        self._room.set()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)
        self._folder.cleanup()

    # ------------------------------------------------------------------------------------------------------ threads

    def _read(self) -> None:
        with suppress(EOFError):
            while (message := self._pipe.receive(_LOOK_SECONDS)) is not None or self._process.poll() is None:
                if message is None:
                    continue
                self._room.clear()
                self._inbox.put(EngineSaid(self, message))
                if isinstance(message, Frames):
                    self._room.wait()
        ended = EngineEnded(self, self._process.wait())
        if self._others is not None:
            end = self._others.end()
            ended = EngineEnded(self, end.code, end.who, end.fault)
        self._reports.join()
        self._folder.cleanup()
        self._pipe.close()
        self._link.close()
        self._inbox.put(ended)

    def _read_reports(self) -> None:
        reports, is_open = Reports(self._link, self._process.pid), True
        readable = select.poll()
        readable.register(self._link, select.POLLIN)
        while is_open:
            over = self._process.poll() is not None
            readable.poll(0 if over else _LOOK_SECONDS * 1000)
            messages, is_open = reports.read()
            for message in messages:
                self._suspects.receive(message)
            is_open &= not over
