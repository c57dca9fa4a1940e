"""Logs a line when nothing has happened for long, with the step that is under way: reading, loading, a model step, or the disk.

Runs in a thread of its own that writes only to the log, so that a stuck disk cannot stop it.
"""

import logging
import threading
from time import monotonic

from ..core.progress import Activity

log = logging.getLogger("mlx_bulk")

LOOK_SECONDS = 0.5


class Heartbeat:
    """A context manager around a whole session. It warns when ``activity`` has not changed for ``stall_seconds``."""

    def __init__(self, stall_seconds: float):
        self.activity = Activity()
        self._stall_seconds = stall_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def doing(self, what: str) -> None:
        """Notes the start of a step."""
        self.activity.doing(what)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        last_warning = 0.0
        while not self._stopped.wait(LOOK_SECONDS):
            now = monotonic()
            quiet_for = now - self.activity.since
            if quiet_for > self._stall_seconds and now - last_warning > self._stall_seconds:
                log.warning("no step for %.0f s: still %s", quiet_for, self.activity.now)
                last_warning = now
