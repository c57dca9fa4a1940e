"""What a worker tells a driver of itself: its name, its machine, and the versions that decide whether it fits. Loads none of them."""

import os
import platform
import secrets
import socket
from importlib.metadata import PackageNotFoundError, version

from ...runner.cluster.messages import Hello

_PACKAGES = ("mlx-bulk", "mlx", "mlx-lm", "transformers")


def first_hello(name: str | None = None) -> Hello:
    """Returns the first message of a new worker; ``name`` stands in place of the machine's."""
    host = socket.gethostname()
    facts: dict[str, str | int | float | None] = {
        "name": name,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
    }
    facts |= {package: _version(package) for package in _PACKAGES}
    facts |= {"cores": os.cpu_count(), "memory_bytes": _memory_bytes(), "pid": os.getpid()}
    return Hello(f"{name or host}-{os.getpid()}-{secrets.token_hex(3)}", host, facts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
