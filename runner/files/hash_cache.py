"""Hashes files, and remembers the sha256 of large ones, since weights take minutes to read.

A hash is remembered under the file's path, size, mtime, ctime and inode. Each has a small file of its own in the user's cache, so
processes that run at once do not disturb each other.
"""

import hashlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from time import time_ns

from ...kernels.backend import cache_folder
from .checked_json import read_document
from .file_stamp import Stamp, is_settled, sha256, stamp_of
from .user_cache import remember

REMEMBERED_BYTES = 64 << 20


def file_sha256(path: Path) -> str:
    """Returns the hex sha256 of a file's contents. Raises OSError where it cannot be read."""
    path = path.resolve()
    if path.stat().st_size < REMEMBERED_BYTES:
        return sha256(path)
    stamp = _stamp(path)
    kept = _kept(stamp)
    try:
        return str(read_document(kept)["sha256"])
    except (OSError, ValueError, KeyError):  # not remembered yet, or damaged: it is only a cache
        digest = sha256(path)
    if _stamp(path) == stamp and is_settled(stamp[-1], time_ns()):
        remember(kept, {"file": str(path), "sha256": digest})
    return digest


def folder_sha256(folder: Path, patterns: tuple[str, ...]) -> str:
    """Returns the hex sha256 over names and contents of the files in ``folder`` that match ``patterns``; "none" where none does."""
    return files_sha256(sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}))


def files_sha256(files: Sequence[Path]) -> str:
    """Returns the hex sha256 over names and contents of ``files`` in their order; "none" without any."""
    whole = hashlib.sha256()
    for path in files:
        whole.update(f"{path.name} {file_sha256(path)}\n".encode())
    return whole.hexdigest() if files else "none"


def _stamp(path: Path) -> tuple[str, int, Stamp]:
    stat = path.stat()
    return str(path), stat.st_size, stamp_of(stat)


def _kept(stamp: tuple[str, int, Stamp]) -> Path:
    """Returns the file that remembers the hash of a file with this stamp."""
    return cache_folder("sha256") / f"{blake2b(repr(stamp).encode(), digest_size=16).hexdigest()}.json"
