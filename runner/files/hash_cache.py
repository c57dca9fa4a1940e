"""sha256 of files. Those of large files are remembered by path, size, mtime, ctime and inode, since weights take minutes to read.

The memory is a folder of the user's cache with a small file a hash: processes that run at once do not disturb each other.
"""

import hashlib
from hashlib import blake2b
from pathlib import Path
from time import time_ns
from typing import Any

from ...kernels.backend import cache_folder
from .checked_json import read_document, write_document
from .file_stamp import Stamp, is_settled, sha256, stamp_of

REMEMBERED_BYTES = 64 << 20


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's contents. Raises OSError where it cannot be read."""
    path = path.resolve()
    if path.stat().st_size < REMEMBERED_BYTES:
        return sha256(path)
    stamp = _stamp(path)
    kept = _kept(stamp)
    try:
        return str(read_document(kept)["sha256"])
    except (OSError, ValueError, KeyError):  # none yet, or damaged: it is only a memory
        found = sha256(path)
    if _stamp(path) == stamp and is_settled(stamp[-1], time_ns()):
        remember(kept, {"file": str(path), "sha256": found})
    return found


def folder_sha256(folder: Path, patterns: tuple[str, ...]) -> str:
    """Hexadecimal sha256 over names and contents of the files in ``folder`` that fit one of ``patterns``; "none" where none does."""
    names = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    whole = hashlib.sha256()
    for path in names:
        whole.update(f"{path.name} {file_sha256(path)}\n".encode())
    return whole.hexdigest() if names else "none"


def _stamp(path: Path) -> tuple[str, int, Stamp]:
    at = path.stat()
    return str(path), at.st_size, stamp_of(at)


def _kept(stamp: tuple[str, int, Stamp]) -> Path:
    """Where the hash of such a file is remembered."""
    return cache_folder("sha256") / f"{blake2b(repr(stamp).encode(), digest_size=16).hexdigest()}.json"


def remember(kept: Path, values: dict[str, Any]) -> None:
    """Writes a checksummed document into such a folder, where that can be."""
    if not kept.is_absolute():
        return
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_document(kept, values)
    except OSError:  # a read-only home only costs time
        return
