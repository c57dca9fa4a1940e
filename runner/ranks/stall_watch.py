"""Ends a process whose group stands still, as when another rank's machine sleeps or its process is stopped: mlx waits for ever.

Each rank watches itself, so that one that runs is enough. What ends it tells by its exit code why.
"""

import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import monotonic

from .ranks import Ranks

log = logging.getLogger("mlx_bulk")

STALLED, LOST = 91, 92  # exit codes: nothing was exchanged for too long; another rank is gone
LOADING = 5.0  # times as long may pass while a model is loaded and tried: ranks' disks differ
_LOOKS = 20  # in the time after which a group is taken for stalled
_BACKENDS = ("[ring]", "[jaccl]")  # what mlx's errors about connections begin with


class StallWatch:
    """Watches this process from a thread, from now on. seconds: without an exchange between the ranks, after which it ends.

    ``ranks`` is given once they have found each other.
    """

    def __init__(self, seconds: float):
        self.ranks: Ranks | None = None
        self._seconds = seconds
        threading.Thread(target=self._watch, name="stalls", daemon=True).start()

    def _watch(self) -> None:
        beats, since = -1, monotonic()
        while True:
            threading.Event().wait(self._seconds / _LOOKS)
            now = 0 if self.ranks is None else self.ranks.beats
            if now != beats:
                beats, since = now, monotonic()
            quiet = monotonic() - since
            if quiet > self._seconds * (LOADING if self.ranks is None or self.ranks.loading else 1.0):
                name = "a rank" if self.ranks is None else self.ranks.name
                log.warning("%s: no step of the group for %.0f s: this process ends, and the group is started again", name, quiet)
                os._exit(STALLED)


@contextmanager
def ending_where_ranks_are_lost() -> Generator[None]:
    """Ends the process with the code ``LOST`` where the connection to another rank breaks inside the block."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith(_BACKENDS):
            log.debug("another rank is gone: %s", error)
            os._exit(LOST)
        raise
