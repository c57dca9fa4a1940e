"""Holds a folder for one process: a lock, and a mark in the lock's file that says what the folder is.

Knows kinds of folders by their marks alone ("mlx-bulk run", "mlx-bulk sweep"), not what lies in them.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

from ..core.errors import RunDirError
from .atomic import fsync_folder, make_folder, sync_descriptor
from .disk_space import room_on

LOCK = ".lock"

_NOT_CONTENT = {LOCK, ".DS_Store"}
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_LOOK_SECONDS = 0.02

_descriptors: set[int] = set()  # of the locks that this process holds


@dataclass(slots=True, frozen=True)
class Holder:
    """A process that holds a lock, as it wrote into the lock's file. pid: None where that file cannot be read. since: as ``now``."""

    pid: int | None
    host: str
    since: str

    def __str__(self) -> str:
        return "another process" if self.pid is None else f"process {self.pid} on {self.host} (since {self.since})"


@contextmanager
def held(folder: Path, mark: str, is_ours: Callable[[Path], bool]) -> Generator[None]:
    """Holds the folder's lock inside the block. Raises as ``hold``."""
    descriptor = hold(folder, mark, is_ours)
    try:
        yield
    finally:
        unlock(descriptor)


def hold(
    folder: Path,
    mark: str,
    is_ours: Callable[[Path], bool],
    begins_with: Collection[str] = (),
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Makes ``folder`` where it is missing, locks it and calls ``prepare``. Returns the lock's descriptor, for ``unlock``.

    is_ours: whether a folder without a lock's file is of this kind all the same. begins_with: see ``refuse_strangers``.
    Raises RunDirError where the folder is not of this kind (it is then left as it is), where another process holds it, or where
    it cannot be made or prepared; OutOfRoom where the volume is full or read-only. The lock is given back then.
    """
    try:
        with room_on(folder):
            refuse_strangers(folder, mark, known=is_ours(folder), begins_with=begins_with)
            make_folder(folder)
            descriptor = lock(folder, mark)
            try:
                prepare()
            except BaseException:
                unlock(descriptor)
                raise
    except FileExistsError as error:
        kind = mark.removeprefix("mlx-bulk ")
        raise RunDirError(f"{error.filename}: is a file; expected a folder for the {kind}. Choose another --output.") from error
    except OSError as error:
        raise RunDirError(f"{folder}: cannot be used as an output folder ({error}). Choose another --output.") from error
    return descriptor


def lock(folder: Path, mark: str) -> int:
    """Locks ``folder`` and writes into the lock's file who holds it. Returns a descriptor that holds the lock until ``unlock``.

    The kernel gives the lock back when the process ends, however it ends. Processes that it started do not inherit it.
    Raises RunDirError where another process holds it or the volume knows no locks, OSError where the file cannot be made.
    """
    while True:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(folder, descriptor)
            if current := _is_current(folder, descriptor):
                _sign(folder, descriptor, mark)
        except BaseException:
            os.close(descriptor)
            raise
        if current:
            _descriptors.add(descriptor)
            return descriptor
        os.close(descriptor)


def _is_current(folder: Path, descriptor: int) -> bool:
    """Returns True when the locked file is still the one of that name: ``discard`` may have removed it before the lock was taken."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat())
    return False


def _take(folder: Path, descriptor: int) -> None:
    try:
        _flock(descriptor)
    except BlockingIOError as error:
        holder = _read_holder(folder / LOCK)
        raise RunDirError(f"{folder}: {holder} is working here. Wait for it, stop it, or choose another --output.") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise RunDirError(
            f"{folder}: its volume has no file locks ({error.strerror}), and two runs could write at once. "
            "Choose an --output on a local disk, or mount the volume with locks."
        ) from error


def _flock(descriptor: int) -> None:
    """Takes the lock. Tries twice, as ``holder`` in another process takes it for some microseconds."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sleep(_LOOK_SECONDS)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sign(folder: Path, descriptor: int, mark: str) -> None:
    """Writes the mark and this process into the lock's file, durably, before anything else is made in the folder.

    The file holds the mark at every instant: the new text is written first, then the rest of a longer old one is cut off.
    """
    who = json.dumps({"file": mark, "pid": os.getpid(), "host": socket.gethostname(), "since": now()}).encode() + b"\n"
    os.pwrite(descriptor, who, 0)
    os.ftruncate(descriptor, len(who))
    sync_descriptor(descriptor)
    fsync_folder(folder)


def holder(folder: Path) -> Holder | None:
    """Returns the process that holds the folder's lock; None where none does, or the volume knows no locks. Takes nothing."""
    path = folder / LOCK
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _read_holder(path)
    except OSError:  # no file: nobody has ever held it
        return None


def missing_folders(folder: Path) -> tuple[Path, ...]:
    """Returns ``folder`` and the folders above it that do not exist yet, from the inside."""
    absolute = folder.absolute()
    return tuple(path for path in (absolute, *absolute.parents) if not path.exists())


def discard(folder: Path, descriptor: int, inside: Collection[str], made: Collection[Path]) -> None:
    """Gives a lock back that led to nothing: removes its file, the folders ``inside`` and those ``made`` for it, if they are empty."""
    with suppress(OSError):
        for name in inside:
            (folder / name).rmdir()
        if {entry.name for entry in folder.iterdir()} == {LOCK}:
            (folder / LOCK).unlink()  # under the lock: who waits for it sees that its file is another
            for path in made:
                path.rmdir()
    unlock(descriptor)


def unlock(descriptor: int) -> None:
    """Gives a lock back. Its file stays for who may wait for it; only ``discard`` removes it."""
    if descriptor in _descriptors:  # a forked child holds none
        _descriptors.remove(descriptor)
        os.close(descriptor)


def _leave_locks() -> None:
    """Closes the locks in a forked child: they belong to the parent, and must not outlive it."""
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_leave_locks)


def refuse_strangers(folder: Path, mark: str, known: bool, begins_with: Collection[str] = ()) -> None:
    """Raises RunDirError where ``folder`` holds files and is not ours.

    It is ours where its lock's file has the ``mark``, or where it is ``known`` by other files. begins_with: folders that one of
    ours is begun with; while they are empty they do not count as content.
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
    """Returns the time in the form in which the folder's files note it: ISO 8601, UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read_holder(path: Path) -> Holder:
    """Reads who holds the lock from its file."""
    with suppress(ValueError, KeyError, TypeError):
        values = json.loads(_read_text(path))
        return Holder(int(values["pid"]), str(values["host"]), str(values["since"]))
    return Holder(None, "", "")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
