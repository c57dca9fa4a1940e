"""sha256 of files. Those of large files are remembered by path, size, mtime and inode, since weights take minutes to read."""

import json
import os
from pathlib import Path

from .durable import sha256

REMEMBERED_BYTES = 64 << 20


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's contents. Raises OSError where it cannot be read."""
    path = path.resolve()
    at = path.stat()
    if at.st_size < REMEMBERED_BYTES:
        return sha256(path)
    key = f"{path}|{at.st_size}|{at.st_mtime_ns}|{at.st_ino}"
    memory = _memory()
    known = _known(memory)
    if key not in known:
        known[key] = sha256(path)
        _remember(memory, known)
    return known[key]


def _memory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx-bulk" / "sha256.json"


def _known(memory: Path) -> dict[str, str]:
    try:
        return json.loads(memory.read_text())
    except (OSError, ValueError):  # none yet, or torn: it is only a memory
        return {}


def _remember(memory: Path, known: dict[str, str]) -> None:
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        fresh = memory.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(known))
        fresh.replace(memory)
    except OSError:  # a read-only home only costs time
        return
