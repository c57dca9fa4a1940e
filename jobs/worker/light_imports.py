"""Imports the library that carries a cluster's messages without what it can do without: an agent waits in little memory."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_numpy() -> Generator[None]:
    """Hides NumPy from what the block imports, unless it is loaded already. Dask's messages do not need it; rows load it later."""
    if "numpy" in sys.modules:
        yield
        return
    hidden: dict[str, Any] = {"numpy": None}  # as Python marks a module that is not there
    sys.modules.update(hidden)
    try:
        yield
    finally:
        del sys.modules["numpy"]
