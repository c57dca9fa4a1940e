"""Files of pictures that a worker has from drivers, in one file of its own without a name: it goes with the process, whoever ends that.

The file is a ring: what is new is written behind the newest, over the oldest.

    | d | e |   | b | c |      e is the newest, b the oldest; a was where e and the gap are
"""

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from tempfile import TemporaryFile
from typing import BinaryIO

MOST_BYTES = 1 << 30


@dataclass(slots=True, frozen=True)
class _Kept:
    """Where a file's bytes stand, and their hex sha256."""

    begin: int
    end: int
    digest: str


class PictureCache:
    """Keeps files of at most ``most_bytes`` in all, by names that the caller gives them. For any thread."""

    def __init__(self, most_bytes: int = MOST_BYTES):
        self._most = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the oldest first
        self._end = 0  # of the newest
        self._file: BinaryIO | None = None

    def digest(self, name: str) -> str:
        """Returns the hex sha256 of the file that is kept under a name, empty where none is."""
        kept = self._kept.get(name)
        return "" if kept is None else kept.digest

    def read(self, name: str, digest: str) -> bytes | None:
        """Returns the file that is kept under a name, None where that is another one by now, or none."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is None or kept.digest != digest or self._file is None:
                return None
            data = os.pread(self._file.fileno(), kept.end - kept.begin, kept.begin)
            if sha256(data).hexdigest() != digest:
                del self._kept[name]
                return None
        return data

    def keep(self, name: str, digest: str, data: bytes) -> None:
        """Keeps a file, in place of others where there is no room. It is not kept where the disk is full: then it is sent again."""
        with self._lock:
            self._kept.pop(name, None)
            begin = self._room_for(len(data))
            if begin is None:
                return
            try:
                if self._file is None:
                    self._file = TemporaryFile(prefix="mlx-bulk-pictures-", buffering=0)  # noqa: SIM115 - open as long as the process
                written = os.pwrite(self._file.fileno(), data, begin)
            except OSError:
                return
            if written == len(data):
                self._end = begin + len(data)
                self._kept[name] = _Kept(begin, self._end, digest)

    def _room_for(self, size: int) -> int | None:
        """Drops the oldest files where ``size`` bytes are to be written. Returns where that is, None for more than there can be."""
        if size > self._most:
            return None
        begin = self._end if self._end + size <= self._most else 0
        if begin < self._end:  # what lies behind the newest is older than what lies at the beginning
            self._drop_oldest(self._end, self._most)
        self._drop_oldest(begin, begin + size)
        return begin

    def _drop_oldest(self, begin: int, end: int) -> None:
        """Drops the oldest files as long as they touch the bytes from ``begin`` to ``end``."""
        while self._kept:
            name, kept = next(iter(self._kept.items()))
            if kept.begin >= end or kept.end <= begin:
                return
            del self._kept[name]
