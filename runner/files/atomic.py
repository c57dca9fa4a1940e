"""Writes that survive a power cut: whole files by rename, lines with checksums, appends that leave no torn middle.

Knows files and bytes only; nothing here knows what a run is. One process at a time may write a file (the run's lock), or each says
which ``writer`` it is.
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
    """Returns when the file's bytes are on the medium, not merely handed to the drive."""
    if sys.platform == "darwin":
        with suppress(OSError):  # network and FUSE volumes know only fsync
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """The same for the file at ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Makes the names in the folder ``path`` durable: files created, renamed or removed there."""
    sync_file(path)


def make_folder(path: Path) -> None:
    """Makes the folder ``path``, and those above it that are missing, so that they are there after a power cut too."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        with suppress(PermissionError):  # a folder that we may write to, and not read, cannot be opened to be synced
            fsync_folder(folder.parent)


@contextmanager
def replacing(path: Path, writer: str = "") -> Generator[BinaryIO]:
    """Opens a file beside ``path`` for writing; when the block ends well it takes ``path``'s place, whole and durable.

    The name of the temporary file is fixed, so what a killed process left there is overwritten by the next attempt. Where no lock
    keeps others from ``path``, ``writer`` is in that name, and the last of them wins.
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
    """Puts ``content`` at ``path``: a reader sees the old file or the new one, also after a power cut. ``writer``: see ``replacing``."""
    with replacing(path, writer) as file:
        file.write(content)


def append_bytes(path: Path, *pieces: bytes | memoryview) -> None:
    """Appends the pieces to ``path`` (created if missing), all of them or none; not yet synced.

    Raises OSError, with the file cut back to its old length: what is appended next must not stand behind a torn piece.
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
