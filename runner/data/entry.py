"""TODO"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

EVERY = (range(sys.maxsize),)


class UnreadableError(ValueError):
    """This entry is no row; the message says why, ``text`` is what stood there."""

    def __init__(self, message: str, text: str):
        super().__init__(message)
        self.text = text


@dataclass(slots=True, frozen=True)
class Entry:
    """One row as it stands in its source: the 1-based line it starts on (None in tables), and how to parse it.

    ``parse`` returns the columns as plain Python values, or raises UnreadableError.
    """

    line: int | None
    parse: Callable[[], dict[str, Any]]
