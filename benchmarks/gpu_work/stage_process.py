"""A process that performs stages of ``gpu.py``, one after the other. It is killed when one takes too long, and starts anew for the next."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[1] / "gpu_worker.py"


class StageProcess:
    """One that runs when it is asked. ``sizes``: of its works. Use it as a context: at its end the process ends too."""

    def __init__(self, sizes: str):
        self._command = [sys.executable, str(PROGRAM), "--sizes", sizes]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "StageProcess":
        """Starts nothing yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the process."""
        self._end()

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """The pieces of its answer, put together. ``error``: why there are no more; after ``limit`` seconds the process is killed."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(limit, stop)
        timer.start()
        answer: dict[str, Any] = {}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer |= json.loads(line)
                if answer.pop("done", False):
                    return answer
        except BrokenPipeError:  # it died while it waited
            pass
        finally:
            timer.cancel()
        code = self._end()
        why = f"stopped after {limit:.0f} s" if late.is_set() else f"the process ended with {code}; what it said stands above"
        return {"error": why} | answer

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def _end(self) -> int:
        if self._process is None:
            return 0
        _kill(self._process)
        self._process.communicate()
        code, self._process = self._process.returncode, None
        return code


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends the process, and those that it has started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
