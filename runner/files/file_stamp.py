"""TODO"""

import hashlib
import os
from pathlib import Path

Stamp = tuple[int, int, int]  # of a file: mtime in ns, ctime in ns, inode


TICK_NS = 2_000_000_000  # the coarsest time of a file system in use: within it, two contents may bear one time


def stamp_of(found: os.stat_result) -> Stamp:
    """A file's stamp. The ctime is in it because the mtime is whatever who writes there says: ``cp -p`` says the old one."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def is_settled(stamp: Stamp, by_ns: int) -> bool:
    """Whether a file with this stamp was last changed so long before ``by_ns`` (ns since 1970) that any change since shows in it."""
    mtime_ns, ctime_ns, _ = stamp
    return by_ns - max(mtime_ns, ctime_ns) > TICK_NS


def sha256(path: Path) -> str:
    """The hex SHA-256 of the file at ``path``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
