"""Imports the library that carries a cluster's messages without what it can do without: an agent waits in little memory."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Dask and tornado only look whether they are there, for arrays, pages, hashes and colours. Rows load NumPy later.
SPARED = ("numpy", "jinja2", "xxhash", "curses", "colorama")
# Dask imports them whole, and a worker that computes nothing takes nothing of theirs: clients, starters of clusters, shuffles, WebSockets.
REPLACED = ("distributed.client", "distributed.deploy", "distributed.shuffle", "distributed.comm.ws")


class _Empty(ModuleType):
    """Stands for a module of Dask. Each name in it is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@contextmanager
def light_imports() -> Generator[None]:
    """Hides what is ``SPARED`` and ``REPLACED`` from what the block imports, but for what is loaded already."""
    hidden: dict[str, Any] = {name: None for name in SPARED if name not in sys.modules}  # as Python marks a module that is not there
    if "distributed" not in sys.modules:
        hidden |= {name: _Empty(name) for name in REPLACED}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
