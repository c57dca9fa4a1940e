"""The engine's process from the inside: it serves its agent until that is gone or asks it to end."""

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress

from ...runner.cluster.interface import Connection
from ...runner.core.host_process import HostProcess
from ..supervision.supervisor_link import Link
from .engine_process import FOLDER
from .message_pipe import DrainedPipe, MessagePipe

log = logging.getLogger("mlx_bulk")


def host_engine(descriptor: int, serve: Callable[[Connection, HostProcess], None]) -> None:
    """Calls ``serve`` with the connection whose socket this process was given as ``descriptor``. Never returns.

    Libraries take seconds to be unloaded, so the process ends at once when ``serve`` returns.
    """
    link = Link.inherited()
    assert link is not None, "its agent gives it the socket of its reports"
    os.set_inheritable(descriptor, False)
    link.last = _use_folder()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent ends it in order
    _end_with(lambda: serve(DrainedPipe(MessagePipe(socket.socket(fileno=descriptor))), HostProcess(supervisor=link)), link.last)


def _use_folder() -> Callable[[], None]:
    """Puts temporary files into the folder that the agent gave. Returns what removes it, in case the agent cannot, as it was killed."""
    if (folder := os.environ.pop(FOLDER, None)) is None:
        return lambda: None
    tempfile.tempdir = folder
    return lambda: shutil.rmtree(folder, ignore_errors=True)


def host_rank(serve: Callable[[], None]) -> None:
    """Calls ``serve`` in a further rank of a group, which ends with its agent, whose end of stdin closes. Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive, name="agent", daemon=True).start()
    _end_with(serve)


def _outlive() -> None:
    with suppress(OSError):
        while os.read(0, 1 << 12):
            pass
    os._exit(0)


def _end_with(serve: Callable[[], None], last: Callable[[], None] = lambda: None) -> None:
    code = 0
    try:
        serve()
    except Exception as error:  # the agent reports to the driver that the process has ended
        log.error("the engine's process ends: %s: %s (--log-level debug shows where)", type(error).__name__, error)
        log.debug("it came from here:", exc_info=error)
        code = 1
    last()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
