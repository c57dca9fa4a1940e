"""Stamps of files, which change when a file changes, and the sha256 of a file's contents."""

import hashlib
import os
from pathlib import Path

Stamp = tuple[int, int, int]  # of a file: mtime in ns, ctime in ns, inode

_TICK_NS = 2_000_000_000  # the coarsest clock of a file system in use: two contents within it may have one time


def stamp_of(stat: os.stat_result) -> Stamp:
    """Returns a file's stamp. It includes the ctime because any program can set the mtime: ``cp -p`` keeps the old one."""
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def is_settled(stamp: Stamp, by_ns: int) -> bool:
    """Returns True when a file was last changed so long before ``by_ns`` (ns since 1970) that any later change alters its stamp."""
    mtime_ns, ctime_ns, _ = stamp
    return by_ns - max(mtime_ns, ctime_ns) > _TICK_NS


def sha256(path: Path) -> str:
    """Returns the hex SHA-256 of the file at ``path``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
