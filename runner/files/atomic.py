"""Writes that survive a power cut: whole files by rename, lines with checksums, appends that leave no torn middle.

Knows files and bytes only; nothing here knows what a run is. One process at a time may write a file (the run's lock), or each says
which ``writer`` it is.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..core.errors import OutOfRoom, RunDirError

log = logging.getLogger("mlx_bulk")

Stamp = tuple[int, int, int]  # of a file: mtime in ns, ctime in ns, inode

TICK_NS = 2_000_000_000  # the coarsest time of a file system in use: within it, two contents may bear one time
RESERVE_BYTES = 8 << 20  # kept free on the volume for what is written beside a part: lines, metrics, the next journals
CHECK = re.compile(rb',?"check":"([0-9a-f]{16})"}$')

_MAKE_ROOM = "What was finished is safe: make room there, then continue with the same command (without --overwrite)."


def sync(descriptor: int) -> None:
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
        sync(descriptor)
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
            sync(file.fileno())
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


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Appends ``value`` as one durable line of JSON whose last key, "check", is the checksum of the rest.

    Raises ValueError where ``value`` has a key "check" of its own or a number JSON does not know (NaN, infinity).
    """
    if "check" in value:
        raise ValueError('a checksummed line cannot have a key "check" of its own')
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    comma = b"," if value else b""
    append_bytes(path, body[:-1] + comma + b'"check":"' + checksum(body) + b'"}\n')
    sync_file(path)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The values of ``path``'s whole lines, without their checksums; a missing file has none.

    Passes over damaged lines and a torn tail and leaves them there, so it may read a file that is being written.
    """
    return [value for _, value in _lines(path) if value is not None]


def damaged_lines(path: Path) -> list[int]:
    """The numbers, from 1, of the lines whose checksum does not fit. A tail without a line end is still being written, or torn."""
    return [number for number, (line, value) in enumerate(_lines(path), start=1) if value is None and line.endswith(b"\n")]


def salvage_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Like ``read_lines``, and leaves the whole lines alone in the file, so that lines may be appended again.

    A torn tail is cut off. Damaged lines are taken out, the file as it was stays beside it as NAME.damaged; the second
    value is how many there were.
    """
    lines = _lines(path)
    values = [value for _, value in lines if value is not None]
    whole = [line for line, value in lines if value is not None]
    damaged = sum(value is None and line.endswith(b"\n") for line, value in lines)
    if damaged:
        aside = path.with_name(path.name + ".damaged")
        atomic_write(aside, b"".join(line for line, _ in lines))
        atomic_write(path, b"".join(whole))
        log.warning("%s: %d damaged lines (their checksums do not fit) are taken out; the file as it was is %s", path, damaged, aside.name)
    elif len(whole) < len(lines):
        torn, kept = len(lines[-1][0]), sum(map(len, whole))
        log.warning("%s: cut off %d bytes behind the last whole line", path, torn)
        os.truncate(path, kept)
        sync_file(path)
    return values, damaged


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Each line with its end, and its value; None where its checksum does not fit."""
    *whole, tail = (path.read_bytes() if path.exists() else b"").split(b"\n")  # not splitlines: a flipped bit may make a \r
    lines = [line + b"\n" for line in whole] + ([tail] if tail else [])
    return [(line, _parse(line)) for line in lines]


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n") or not (check := CHECK.search(line[:-1])):
        return None
    body = line[: check.start()] + b"}"
    return json.loads(body) if checksum(body) == check[1] else None


def checksum(body: bytes) -> bytes:
    """16 hex digits that show damage (not malice)."""
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()


def sha256(path: Path) -> str:
    """The hex SHA-256 of the file at ``path``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def stamp_of(found: os.stat_result) -> Stamp:
    """A file's stamp. The ctime is in it because the mtime is whatever who writes there says: ``cp -p`` says the old one."""
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def settled(stamp: Stamp, by_ns: int) -> bool:
    """Whether a file with this stamp was last changed so long before ``by_ns`` (ns since 1970) that any change since shows in it."""
    mtime_ns, ctime_ns, _ = stamp
    return by_ns - max(mtime_ns, ctime_ns) > TICK_NS


@contextmanager
def room_on(folder: Path) -> Generator[None]:
    """Turns what the operating system refuses to write within the block into errors that name the place and the fix.

    "No room" and a read-only volume become OutOfRoom, which names the volume and what is free; missing rights to ``folder`` or
    what is in it become RunDirError. What has to do with other files stays OSError.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        match error.errno:
            case errno.EROFS:
                raise OutOfRoom(f"{place}: is on a read-only volume. Make it writable, or choose another --output.") from error
            case errno.ENOSPC | errno.EDQUOT:
                volume = _volume(folder)
                raise OutOfRoom(
                    f"{place}: {error.strerror}. The volume {volume} has {_megabytes(shutil.disk_usage(volume).free)} free. {_MAKE_ROOM}"
                ) from error
            case errno.EACCES | errno.EPERM if Path(os.fsdecode(place)).is_relative_to(folder):
                raise RunDirError(
                    f"{place}: cannot be written ({error.strerror}). Give this user the right to write there, or choose another --output."
                ) from error
            case _:
                raise


def require_room(path: Path, size: int = 0) -> None:
    """Raises OutOfRoom where the volume of ``path`` has no room for ``size`` bytes more and RESERVE_BYTES beside them."""
    volume = _volume(path)
    if (free := shutil.disk_usage(volume).free) < size + RESERVE_BYTES:
        own = f"{_megabytes(size)} for this file and " if size else ""
        raise OutOfRoom(
            f"{path}: the volume {volume} has {_megabytes(free)} free, needed are {own}{_megabytes(RESERVE_BYTES)} in reserve, "
            f"for what else the run writes. {_MAKE_ROOM}"
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _volume(folder: Path) -> Path:
    """Where the volume that ``folder`` lies on is mounted."""
    return next(mount for mount in (folder.absolute(), *folder.absolute().parents) if mount.is_mount())
