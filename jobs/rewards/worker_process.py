"""Starts a worker process for rewards and calls functions in it, with a time limit for each call.

Knows pipes and processes, and no group: inputs come as bytes, answers are those of ``worker.py``.
"""

import json
import logging
import math
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .process_guard import resident_bytes

log = logging.getLogger("mlx_bulk")

START_SECONDS = 300.0  # for importing the functions' files and their imports
MEASURE_SECONDS = 0.25  # between looks at a worker's memory
END_SECONDS = 10.0  # for the guard to end all that functions have started
_GUARD, _WORKER = (Path(__file__).parent / name for name in ("process_guard.py", "worker.py"))
_LINE_CHARACTERS = 500  # of a line that a function prints, in the log


class WorkerDied(Exception):
    """The process ended during a call; the message says how."""


class WorkerHangs(Exception):
    """The process did not answer in time."""


class WorkerTooLarge(Exception):
    """The process, with all that its functions have started, took more memory than allowed; the message says how much."""


class WorkerStrayed(WorkerDied):
    """An answer came that belongs to no request, or to another one: a function wrote it, perhaps one of an earlier request."""


class Worker:
    """A process in the working folder. It must ``load`` functions before a ``call``.

    Requests are numbered, and each answer has its request's number.
    """

    def __init__(self) -> None:
        self._rest, self._requests, self._lock, self._ended = b"", 0, threading.Lock(), False
        self._gigabytes: float | None = None
        ends: list[int] = []
        try:
            for _ in range(3):
                ends += os.pipe()
            tasks, self._tasks, self._answers, answers, life, self._life = ends
            self._process = subprocess.Popen(
                # -P: files beside the script must not be imported in place of a user's modules.
                [sys.executable, "-P", str(_GUARD), str(life), str(_WORKER), str(tasks), str(answers)],
                pass_fds=(tasks, answers, life),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach the run alone.
                start_new_session=True,
                # Sets of strings have one order in every worker and every session.
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        for end in (tasks, answers, life):
            os.close(end)
        threading.Thread(target=self._log_output, daemon=True).start()

    @property
    def usable(self) -> bool:
        """Whether the process runs and has said nothing since its last answer, so that it can be called."""
        return self._process.poll() is None and not self._rest and not _is_ready(self._answers, select.POLLIN, 0.0)

    def load(self, functions: Sequence[str]) -> list[dict[str, Any]]:
        """Imports functions ("path.py:name" or "package.module:name") and describes each. Raises WorkerDied, WorkerHangs."""
        return self._request(list(functions), START_SECONDS)

    def call(self, function: int, args: Mapping[str, Any], group: bytes, seconds: float, gigabytes: float | None) -> dict[str, Any]:
        """Calls the function of this number with ``args`` and the pickled mapping ``group``; returns its answer.

        gigabytes: the most memory that the process, and all that it has started, may have resident; None for any.
        Raises WorkerDied, WorkerHangs and WorkerTooLarge. After each the process is of no more use; ``close`` it.
        """
        self._gigabytes = gigabytes
        return self._request((function, dict(args), group), seconds)

    def kill(self) -> None:
        """Ends the process and all that its functions have started. Any thread may call it, more than once."""
        with self._lock:
            if not self._ended:
                self._ended = True
                with suppress(BrokenPipeError):  # the guard has ended
                    os.write(self._life, b"e")  # a process forked from the run may hold life open, so closing alone says nothing
                os.close(self._life)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("process %d of the reward functions, or what it has started, does not end", self._process.pid)
            self._process.kill()

    def close(self) -> None:
        """Ends the process and closes the pipes. No other thread may be in a call."""
        self.kill()
        for end in (self._tasks, self._answers):
            os.close(end)

    # ------------------------------------------------------------------------------------------------------- the pipes

    def _request(self, message: object, seconds: float) -> Any:
        until = time.monotonic() + seconds
        self._requests += 1
        content = pickle.dumps((self._requests, message))
        try:
            self._send(len(content).to_bytes(8, "big") + content, until)
        except BrokenPipeError:
            raise WorkerDied(self._end()) from None
        try:
            number, answer = json.loads(self._line(until))
        except (ValueError, TypeError):
            number, answer = None, None
        if number != self._requests or self._rest:
            raise WorkerStrayed("a function wrote into its process's pipe")
        return answer

    def _send(self, content: bytes, until: float) -> None:
        os.set_blocking(self._tasks, False)
        left = memoryview(content)
        while left:
            self._wait(self._tasks, select.POLLOUT, until)
            left = left[os.write(self._tasks, left[:65536]) :]

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._rest:
            self._wait(self._answers, select.POLLIN, until)
            if not (more := os.read(self._answers, 1 << 20)):
                raise WorkerDied(self._end())
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _wait(self, end: int, event: int, until: float) -> None:
        while not _is_ready(end, event, max(0.0, min(until - time.monotonic(), MEASURE_SECONDS if self._gigabytes else math.inf))):
            if time.monotonic() >= until:
                raise WorkerHangs
            if self._gigabytes and (used := resident_bytes(self._process.pid) / 1e9) > self._gigabytes:
                raise WorkerTooLarge(f"its process took {used:.3g} GB; expected at most {self._gigabytes:g} GB")

    def _end(self) -> str:
        """Says how the process ended. Its pipes are closed by its end, or by a function."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code is None:
            return "its process closed its pipes"
        return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with exit code {code}"

    def _log_output(self) -> None:
        """Sends the output of functions to the log, where it does not break the progress bar."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                log.debug("a reward function printed: %s", line.decode("utf-8", "replace").rstrip()[:_LINE_CHARACTERS])


def _is_ready(end: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(end, event)
    return bool(poll.poll(seconds * 1000))
