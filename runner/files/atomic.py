"""Writes that survive a power cut: whole files by rename, and appends that leave no torn middle.

Only one process at a time may write a file (it holds the run's lock), or each process gives a ``writer`` name of its own.
"""

import fcntl
import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

log = logging.getLogger("mlx_bulk")


def sync_descriptor(descriptor: int) -> None:
    """Returns when the file's bytes are on the medium, not only in the drive's cache."""
    if sys.platform == "darwin":
        with suppress(OSError):  # network and FUSE volumes have only fsync
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Returns when the bytes of the file at ``path`` are on the medium."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Makes the names in the folder ``path`` durable, after files were created, renamed or removed there."""
    sync_file(path)


def make_folder(path: Path) -> None:
    """Makes the folder ``path`` and its missing parents, durably."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        with suppress(PermissionError):  # a folder that we may write but not read cannot be opened to be synced
            fsync_folder(folder.parent)


@contextmanager
def replacing(path: Path, writer: str = "") -> Generator[BinaryIO]:
    """Opens a temporary file beside ``path`` for writing. When the block ends without an error, it replaces ``path``, durably.

    The temporary name is fixed, so the next attempt overwrites what a killed process left. Where no lock keeps other processes from
    ``path``, each gives a ``writer``, which becomes part of the temporary name; the last one wins.
    """
    temporary = path.with_name(f".{path.name}{writer}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            sync_descriptor(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def atomic_write(path: Path, content: bytes, writer: str = "") -> None:
    """Writes ``content`` to ``path``. A reader sees the old file or the new one, also after a power cut. writer: see ``replacing``."""
    with replacing(path, writer) as file:
        file.write(content)


def append_bytes(path: Path, *pieces: bytes | memoryview) -> None:
    """Appends the pieces to ``path`` (created if missing), all of them or none. Does not sync the file.

    Raises OSError after cutting the file back to its old length, so that the next append does not follow a torn piece.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            fsync_folder(path.parent)
        try:
            for piece in pieces:
                _write_all(descriptor, memoryview(piece))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
