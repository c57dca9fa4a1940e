"""A worker process of the rewards as its caller sees it: started, asked with a time limit, replaced when it dies or hangs.

Knows pipes and processes, and no group: inputs come as bytes, answers are what ``worker.py`` wrote.
"""

import json
import logging
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

log = logging.getLogger("mlx_bulk")

START_SECONDS = 300.0  # to import the files of the functions, and what those import
_SCRIPT = Path(__file__).parent / "worker.py"
_LINE = 500  # characters of what a function prints that go into the log at once


class WorkerDied(Exception):
    """The process ended while it was asked; the message says how."""


class WorkerHangs(Exception):
    """The process did not answer in time."""


class Worker:
    """A process in the working folder, which is to ``load`` functions before it is asked for what they say."""

    def __init__(self) -> None:
        self._rest, self._killed = b"", False
        ends: list[int] = []
        try:
            for _ in range(3):
                ends += os.pipe()
            tasks, self._tasks, self._answers, answers, life, self._life = ends
            self._process = subprocess.Popen(
                # -P: what lies beside the script is not to be imported in place of a user's modules.
                [sys.executable, "-P", str(_SCRIPT), str(tasks), str(answers), str(life)],
                pass_fds=(tasks, answers, life),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the run alone; and with the group goes what a function has started.
                start_new_session=True,
                # Sets of strings are walked through in one order in every worker and every session.
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        for end in (tasks, answers, life):
            os.close(end)
        threading.Thread(target=self._tell, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether the process can be asked."""
        return self._process.poll() is None

    def load(self, functions: Sequence[str]) -> list[dict[str, Any]]:
        """Imports functions ("path.py:name" or "package.module:name"), and says of each what it is. Raises WorkerDied, WorkerHangs."""
        return self._asked(list(functions), START_SECONDS)

    def call(self, function: int, args: Mapping[str, Any], group: bytes, seconds: float) -> dict[str, Any]:
        """What the function of this number answers to ``args`` and the pickled mapping ``group``. Raises WorkerDied, WorkerHangs.

        Behind either the process is of no more use; ``close`` it.
        """
        return self._asked((function, dict(args), group), seconds)

    def kill(self) -> None:
        """Ends the process, with all that its functions have started. May be called by any thread, and more than once."""
        if not self._killed:
            self._killed = True
            with suppress(ProcessLookupError, PermissionError):  # gone, or a zombie (macOS)
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """As ``kill``, and closes the pipes; only the thread that asks may call it, or one that knows that none does."""
        self.kill()
        for end in (self._tasks, self._answers, self._life):
            os.close(end)

    # ------------------------------------------------------------------------------------------------------- the pipes

    def _asked(self, message: object, seconds: float) -> Any:
        until = time.monotonic() + seconds
        content = pickle.dumps(message)
        try:
            self._send(len(content).to_bytes(8, "big") + content, until)
        except BrokenPipeError:
            raise WorkerDied(self._end()) from None
        try:
            return json.loads(self._line(until))
        except ValueError:
            raise WorkerDied("a function wrote into its process's pipe") from None

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
        poll = select.poll()
        poll.register(end, event)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise WorkerHangs

    def _end(self) -> str:
        """How the process has ended: its pipes are closed by that, or by a function that did so."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code is None:
            return "its process closed its pipes"
        return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else f"its process ended with exit code {code}"

    def _tell(self) -> None:
        """What functions print goes to the log, where it does not break the progress."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                log.debug("a reward function printed: %s", line.decode("utf-8", "replace").rstrip()[:_LINE])
