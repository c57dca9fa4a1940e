"""Renders templates in a second process with limits for memory and time, where this process cannot tell what they cost.

The process starts when it is first needed, and stays. One that takes too long or too much memory is ended, and the next request
starts another. The other side is ``render_worker.py``. Knows no templates.
"""

import atexit
import json
import os
import pickle
import select
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from time import monotonic
from typing import Any

SECONDS = 10.0  # for one text; templates take a millisecond
MEMORY_BYTES = 1 << 30  # for one text, beside the program itself
_START_SECONDS = 120.0
_LOOK_SECONDS = 0.25  # between two looks at its memory, where the system does not limit it (macOS)
_PROGRAM_BYTES = 1 << 28
_MODULE = "mlx_bulk.runner.templates.render_worker"


class TooMuch(Exception):
    """A template takes more time or memory than it may. The message continues "the template …"."""

    def __init__(self, reason: str, limit: str = ""):
        super().__init__(reason + limit)
        self._reason, self._limit = reason, limit

    def on(self, what: str) -> str:
        """Returns the message with what was rendered."""
        return f"{self._reason} with {what}{self._limit}"


class RenderRefused(Exception):
    """A template raised an error; the message is the error's."""


def render_apart(kind: str, request: dict[str, Any], seconds: float = SECONDS) -> Any:
    """Returns what the worker makes of a request. Raises RenderRefused with the template's error, and TooMuch.

    kind: the name of the worker's function. request: its arguments, which can be pickled.
    """
    return _process().render(kind, request, seconds)


class _RenderProcess:
    """The process, and the number of the last request. Any thread may call it; one request runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._number, self._rest = 0, b""

    def render(self, kind: str, request: dict[str, Any], seconds: float) -> Any:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            self._number += 1
            try:
                answer = self._answer(pickle.dumps((self._number, kind, request)), seconds)
                if answer.get("number") != self._number:
                    raise TooMuch("ends its process")
            except BaseException:  # it may answer later: nobody may take that for the answer to another request
                self.end()
                raise
        if "too_much" in answer:
            raise _too_much_memory()
        if (refused := answer.get("refused")) is not None:
            raise RenderRefused(refused)
        return answer["value"]

    def end(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        environment = os.environ | {
            "MLX_BULK_BLAS": "off",
            "OPENBLAS_NUM_THREADS": "1",
            "USE_TORCH": "0",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(MEMORY_BYTES), str(int(SECONDS) + 5)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run alone
            env=environment,
        )
        self._rest = b""
        self._answer(b"", _START_SECONDS)

    def _answer(self, content: bytes, seconds: float) -> dict[str, Any]:
        """Sends a message, where there is one, and waits for a line of JSON."""
        assert self._process is not None, "it is started"
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        if content:
            with suppress(BrokenPipeError):  # reading says so as well
                self._process.stdin.write(len(content).to_bytes(8, "big") + content)
                self._process.stdin.flush()
        deadline = monotonic() + seconds
        pieces = [self._rest]
        while b"\n" not in pieces[-1]:
            if monotonic() > deadline:
                raise TooMuch("is not done", f" after {seconds:g} seconds")
            readable, _, _ = select.select([self._process.stdout], [], [], min(_LOOK_SECONDS, seconds))
            if readable:
                piece = os.read(self._process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise TooMuch("ends its process")
                pieces.append(piece)
            elif _resident_bytes(self._process.pid) > MEMORY_BYTES + _PROGRAM_BYTES:
                raise _too_much_memory()
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        return json.loads(line)


def _too_much_memory() -> TooMuch:
    return TooMuch(f"takes more than {MEMORY_BYTES / (1 << 30):g} GiB of memory")


@cache
def _process() -> _RenderProcess:
    process = _RenderProcess()
    atexit.register(process.end)
    return process


def _resident_bytes(pid: int) -> int:
    """Returns the memory that a process has, 0 where nobody says."""
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        return 1024 * int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, timeout=2, check=False).stdout)
    return 0
