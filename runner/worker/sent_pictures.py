"""A worker's end of pictures that rows name by a path: it asks the driver for one after another, and keeps what it has for later rows.

The driver is asked each time: it says whether the file is what the worker has, so that a change is seen as on one machine. The thread
that needs a picture waits; another takes parts in. Does not know which files there are.
"""

import secrets
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock

from ..cluster.messages import FromWorker
from ..core.errors import RunEnded
from ..images.sources import picture_error, shown_file
from ..parcels.file_messages import PicturePart, PictureTaken, PictureWanted
from ..parcels.picture_desk import file_name
from .picture_cache import PictureCache

_MOST_TRIES = 3  # of a file that changes while it is read, or comes damaged
_LOOK_SECONDS = 0.2


class SentPictures:
    """The files of pictures of the run ``run``, as its driver has them. tell: sends a message to it. stopped: the run is to end."""

    def __init__(self, run: str, cache: PictureCache, tell: Callable[[FromWorker], None], stopped: Callable[[], bool]):
        self._run, self._cache, self._tell, self._stopped = run, cache, tell, stopped
        self._asks = count(secrets.randbits(48))  # an engine that dies leaves answers behind, which are not for the next one
        self._parts: SimpleQueue[PicturePart] = SimpleQueue()
        self._one = Lock()  # the driver answers one ask of a worker at a time

    def take(self, part: PicturePart) -> None:
        """Takes an answer of the driver in. For any thread."""
        self._parts.put(part)

    def read(self, path: str, where: str, beside: Path) -> bytes:
        """Returns the bytes of a file that a row names, a ``FileReader``. For any thread.

        Raises RowError as the driver does where it cannot be read, RunEnded where the run ends before it comes.
        """
        named, kept_as = file_name(path, where, beside), file_name(path, "", beside)
        with self._one:
            for _ in range(_MOST_TRIES):
                if (data := self._read(named, kept_as)) is not None:
                    return data
        raise picture_error(
            f"{shown_file(path, where)} changed while the run read it; put it back as it was, then run again with --retry-errors"
        )

    def _read(self, named: str, kept_as: str) -> bytes | None:
        """Returns the file as a whole, None where it changes meanwhile, or comes damaged."""
        have = self._cache.digest(kept_as)
        part = first = self._ask(named, have)
        if have and first.digest == have:
            return self._cache.read(kept_as, have)  # None where it does not: then it is asked for as a whole
        data = bytearray(first.content)
        while part.content and len(data) < first.size:
            part = self._ask(named, offset=len(data))
            if part.digest != first.digest:
                break
            data += part.content
        if first.content:
            self._tell(PictureTaken(self._run))
        if sha256(data).hexdigest() != first.digest:
            return None
        self._cache.keep(kept_as, first.digest, bytes(data))
        return bytes(data)

    def _ask(self, named: str, have: str = "", offset: int = 0) -> PicturePart:
        """Asks the driver, and waits for its answer. Raises RowError where that is a problem, RunEnded."""
        wanted = PictureWanted(self._run, next(self._asks), named, have, offset)
        self._tell(wanted)
        while True:
            try:
                part = self._parts.get(timeout=_LOOK_SECONDS)
            except Empty:
                if self._stopped():
                    raise RunEnded from None
                continue
            if (part.ask, part.offset) == (wanted.ask, offset):
                break
        if part.problem:
            raise picture_error(part.problem)
        return part
