"""Imports the library that carries a cluster's messages without what it can do without: an agent waits in little memory."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

# Dask and tornado only look whether they are there, for arrays, pages, hashes and colours. Rows load NumPy later.
SPARED = ("numpy", "jinja2", "xxhash", "curses")


@contextmanager
def light_imports() -> Generator[None]:
    """Hides what is ``SPARED`` from what the block imports, but for what is loaded already."""
    hidden: dict[str, Any] = {name: None for name in SPARED if name not in sys.modules}  # as Python marks a module that is not there
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
