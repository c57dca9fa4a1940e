"""Turns a full or read-only volume, and missing rights, into errors that name the place and the fix."""

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import OutOfRoom, RunDirError
from ..core.units import size_as_text

RESERVE_BYTES = 8 << 20  # kept free beside a part, for lines, metrics and the next journals

_MAKE_ROOM = "What was finished is safe: make room there, then continue with the same command (without --overwrite)."


@contextmanager
def room_on(folder: Path, instead: str = "choose another --output") -> Generator[None]:
    """Translates the OSErrors of writes inside the block.

    A full or read-only volume becomes OutOfRoom. Missing rights to ``folder``, or to files in it, become RunDirError. All others
    stay as they are. instead: what the user can do where nothing can be written there.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        match error.errno:
            case errno.EROFS:
                raise OutOfRoom(f"{place}: is on a read-only volume. Make it writable, or {instead}.") from error
            case errno.ENOSPC | errno.EDQUOT:
                volume = _volume(folder)
                raise OutOfRoom(
                    f"{place}: {error.strerror}. The volume {volume} has {size_as_text(shutil.disk_usage(volume).free)} free. {_MAKE_ROOM}"
                ) from error
            case errno.EACCES | errno.EPERM if Path(os.fsdecode(place)).is_relative_to(folder):
                raise RunDirError(
                    f"{place}: cannot be written ({error.strerror}). Give this user the right to write there, or {instead}."
                ) from error
            case _:
                raise


def require_room(path: Path, size: int = 0) -> None:
    """Raises OutOfRoom where the volume of ``path`` has no room for ``size`` more bytes and RESERVE_BYTES beside them."""
    volume = _volume(path)
    if (free := shutil.disk_usage(volume).free) < size + RESERVE_BYTES:
        own = f"{size_as_text(size)} for this file and " if size else ""
        raise OutOfRoom(
            f"{path}: the volume {volume} has {size_as_text(free)} free, needed are {own}{size_as_text(RESERVE_BYTES)} in reserve, "
            f"for what else the run writes. {_MAKE_ROOM}"
        )


def _volume(folder: Path) -> Path:
    """Returns the mount point of the volume that ``folder`` lies on."""
    return next(mount for mount in (folder.absolute(), *folder.absolute().parents) if mount.is_mount())
