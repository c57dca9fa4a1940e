"""Small files in the user's cache: what took time to find out, and may be found out again."""

import os
import threading
from pathlib import Path
from typing import Any

from .checked_json import write_document


def remember(kept: Path, values: dict[str, Any]) -> None:
    """Writes a checksummed document into a folder of the user's cache. Does nothing where it cannot be written.

    Several processes and threads may write one file at once; the last one wins.
    """
    if not kept.is_absolute():
        return
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_document(kept, values, f"{os.getpid()}-{threading.get_ident()}")
    except OSError:  # with a read-only home nothing is remembered, which only costs time
        return
