"""Writes that survive a power cut: whole files by rename, lines with checksums, appends that leave no torn middle.

Knows files and bytes only; nothing here knows what a run is. One process at a time may write a file (the run's lock).
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import OutOfRoom, RunDirError

log = logging.getLogger("mlx_bulk")

CHECK = re.compile(rb',?"check":"([0-9a-f]{16})"}$')


def sync(descriptor: int) -> None:
    """Returns when the file's bytes are on the medium, not merely handed to the drive."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError:  # network and FUSE volumes know only fsync
            pass
    os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """The same for the file at ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: Path) -> None:
    """Makes the names in the folder ``path`` durable: files created, renamed or removed there."""
    sync_file(path)


@contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """Opens a file beside ``path`` for writing; when the block ends well it takes ``path``'s place, whole and durable.

    The name of the temporary file is fixed, so what a killed process left there is overwritten by the next attempt.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def atomic_write(path: Path, content: bytes) -> None:
    """Puts ``content`` at ``path``: a reader sees the old file or the new one, also after a power cut."""
    with replacing(path) as file:
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


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Appends ``value`` as one durable line of JSON whose last key, "check", is the checksum of the rest.

    Raises ValueError where ``value`` has a key "check" of its own or a number JSON does not know (NaN, infinity).
    """
    if "check" in value:
        raise ValueError('a checksummed line cannot have a key "check" of its own')
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    comma = b"," if value else b""
    append_bytes(path, body[:-1] + comma + b'"check":"' + _checksum(body) + b'"}\n')
    sync_file(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The values of ``path``'s lines, without their checksums; a missing file has none.

    Stops before a torn or damaged tail and leaves it there, so it may read a file that is being written.
    Raises RunDirError where a damaged line is followed by a good one.
    """
    return _good_lines(path)[0]


def mend_lines(path: Path) -> list[dict[str, Any]]:
    """Like ``read_lines``, and cuts the tail off, so that lines may be appended again."""
    values, good_bytes = _good_lines(path)
    if path.exists() and (torn := path.stat().st_size - good_bytes):
        log.warning("%s: cut off %d bytes behind the last whole line", path, torn)
        os.truncate(path, good_bytes)
        sync_file(path)
    return values


def _good_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The values of the lines before the damaged tail, and how many bytes those lines take."""
    values: list[dict[str, Any]] = []
    good_bytes, damaged = 0, 0
    content = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        value = _parse(line)
        if value is None:
            damaged = damaged or number
        elif damaged:
            raise RunDirError(
                f"{path}: line {damaged} is damaged (its checksum does not fit). "
                "Remove that line and run again; what it recorded is checked and, where needed, done again."
            )
        else:
            values.append(value)
            good_bytes += len(line)
    return values, good_bytes


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n") or not (check := CHECK.search(line[:-1])):
        return None
    body = line[: check.start()] + b"}"
    return json.loads(body) if _checksum(body) == check[1] else None


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()


def sha256(path: Path) -> str:
    """The hex SHA-256 of the file at ``path``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def room_on(folder: Path) -> Generator[None]:
    """Turns the operating system's "no room" errors within the block into OutOfRoom naming the volume and what is free."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        if error.errno == errno.EROFS:
            raise OutOfRoom(
                f"{error.filename or folder}: is on a read-only volume. Make it writable, or choose another --output."
            ) from error
        volume = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_mount())
        raise OutOfRoom(
            f"{error.filename or folder}: {error.strerror}. The volume {volume} has {shutil.disk_usage(volume).free} bytes free. "
            "What was finished is safe: make room there and run the same command again."
        ) from error
