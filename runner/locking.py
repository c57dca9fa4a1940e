"""Whose a folder of ours is: a lock that one process at a time holds, and a mark in its file that says what the folder is.

Knows kinds of folders by their marks alone ("mlx-bulk run", "mlx-bulk sweep"); what lies in them is for those who open them.
"""

import fcntl
import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from .errors import RunDirError

LOCK = ".lock"

_NOT_CONTENT = {LOCK, ".DS_Store"}


def lock(folder: Path, mark: str) -> int:
    """An open descriptor that holds the folder's lock; its file then says who we are. Closing it gives the lock back.

    The file stays: removing it would let two processes lock two files of one name.
    Raises RunDirError where another process holds it, OSError where it cannot be made.
    """
    path = folder / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = json.dumps({"file": mark, "pid": os.getpid(), "host": socket.gethostname(), "since": now()})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode() + b"\n", 0)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunDirError(f"{folder}: {_holder(path)} is working here. Wait for it, stop it, or choose another --output.") from error
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_strangers(folder: Path, mark: str, known: bool) -> None:
    """Raises RunDirError for a folder that holds something and has neither ``mark`` nor, where the lock is gone, is ``known``."""
    if known or not folder.is_dir() or not (names := {entry.name for entry in folder.iterdir()} - _NOT_CONTENT):
        return
    if mark not in _read_text(folder / LOCK):
        shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        raise RunDirError(f"{folder}: is not an {mark}, it holds {shown}. Choose another --output, or an empty folder.")


def now() -> str:
    """The time as the folder's files note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _holder(path: Path) -> str:
    with suppress(ValueError, KeyError, TypeError):
        holder = json.loads(_read_text(path))
        return f"process {holder['pid']} on {holder['host']} (since {holder['since']})"
    return "another process"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
