"""The heartbeat: one line when nothing has happened for long, with what was going on: reading, loading, a step, or the disk.

A thread of its own that writes to nothing but the log: a disk that is stuck holds up everybody else.
"""

import logging
import threading
from time import monotonic

from ..engine.interface import Progress

log = logging.getLogger("mlx_bulk")

LOOK_SECONDS = 0.5


class Heartbeat:
    """A context manager around a whole session; says after ``stall_seconds`` without a step what is still being done."""

    def __init__(self, stall_seconds: float):
        self.progress = Progress()  # whose steps are watched
        self._stall = stall_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def doing(self, what: str) -> None:
        """Says what is done from now on."""
        self.progress.doing(what)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        said = 0.0
        while not self._stopped.wait(LOOK_SECONDS):
            now = monotonic()
            quiet_for = now - self.progress.since
            if quiet_for > self._stall and now - said > self._stall:
                log.warning("no step for %.0f s: still %s", quiet_for, self.progress.now)
                said = now
