"""Whose a folder of ours is: a lock that one process at a time holds, and a mark in its file that says what the folder is.

Knows kinds of folders by their marks alone ("mlx-bulk run", "mlx-bulk sweep"); what lies in them is for those who open them.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

from ..core.errors import RunDirError
from .atomic import fsync_folder, sync_descriptor

LOCK = ".lock"

_NOT_CONTENT = {LOCK, ".DS_Store"}
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_LOOK_SECONDS = 0.02

_held: set[int] = set()


@dataclass(slots=True, frozen=True)
class Holder:
    """A process that holds a lock, by what it has written there; pid None: it cannot be read. since: as ``now`` has it."""

    pid: int | None
    host: str
    since: str

    def __str__(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid} on {self.host} (since {self.since})"


def lock(folder: Path, mark: str) -> int:
    """An open descriptor that holds the folder's lock until ``unlock``; its file then says who we are.

    The kernel gives the lock back when the process ends, however it ends; processes it started do not inherit it.
    Raises RunDirError where another process holds it or the volume knows no locks, OSError where the file cannot be made.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(folder, descriptor)
        _sign(folder, descriptor, mark)
    except BaseException:
        os.close(descriptor)
        raise
    _held.add(descriptor)
    return descriptor


def _take(folder: Path, descriptor: int) -> None:
    try:
        _flock(descriptor)
    except BlockingIOError as error:
        raise RunDirError(f"{folder}: {_said(folder / LOCK)} is working here. Wait for it, stop it, or choose another --output.") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise RunDirError(
            f"{folder}: its volume has no file locks ({error.strerror}), and two runs could write at once. "
            "Choose an --output on a local disk, or mount the volume with locks."
        ) from error


def _flock(descriptor: int) -> None:
    """Takes the lock; who only looks (``holder``) has it for some microseconds, and does not count."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sleep(_LOOK_SECONDS)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sign(folder: Path, descriptor: int, mark: str) -> None:
    """Says in the lock's file what the folder is and who we are, on the medium before anything else is made there.

    The mark stands there at every instant: what an earlier process wrote is cut off behind the new words, not before them.
    """
    who = json.dumps({"file": mark, "pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode() + b"\n"
    os.pwrite(descriptor, who, 0)
    os.ftruncate(descriptor, len(who))
    sync_descriptor(descriptor)
    fsync_folder(folder)


def holder(folder: Path) -> Holder | None:
    """The process that holds the folder's lock; None where none does, or the volume knows no locks. Leaves the lock as it is."""
    path = folder / LOCK
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _said(path)
    except OSError:  # no file: nobody has ever held it
        return None


def unlock(descriptor: int) -> None:
    """Gives a lock back. Its file stays: removing it would let two processes lock two files of one name."""
    if descriptor in _held:  # a forked child holds none
        _held.remove(descriptor)
        os.close(descriptor)


def _leave_locks() -> None:
    """In a forked child: the lock belongs to the parent, and shall not outlive it."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_leave_locks)


def refuse_strangers(folder: Path, mark: str, known: bool, begins_with: Collection[str] = ()) -> None:
    """Raises RunDirError for a folder that holds something and has neither ``mark`` nor, where the lock is gone, is ``known``.

    begins_with: folders that our own are begun with; as long as they are empty they do not count.
    """
    if known or not folder.is_dir():
        return
    names = {entry.name for entry in folder.iterdir() if entry.name not in begins_with or not _is_empty(entry)} - _NOT_CONTENT
    if names and mark not in _read_text(folder / LOCK):
        shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        raise RunDirError(f"{folder}: is not an {mark}, it holds {shown}. Choose another --output, or an empty folder.")


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and next(folder.iterdir(), None) is None


def now() -> str:
    """The time as the folder's files note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _said(path: Path) -> Holder:
    """The holder, as the lock's file says."""
    with suppress(ValueError, KeyError, TypeError):
        values = json.loads(_read_text(path))
        return Holder(int(values["pid"]), str(values["host"]), str(values["since"]))
    return Holder(None, "", "")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
