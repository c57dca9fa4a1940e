"""An entry: one row of a source that is not parsed yet, and the error of one that can't be parsed."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ALL_ROWS = (range(sys.maxsize),)


class UnreadableError(ValueError):
    """Raised for an entry that is no row. The message says why; ``text`` is the entry's text."""

    def __init__(self, message: str, text: str):
        super().__init__(message)
        self.text = text


@dataclass(slots=True, frozen=True)
class Entry:
    """One unparsed row of a source. ``line``: the 1-based line on which it starts, None in tables.

    ``parse`` returns the columns as plain Python values, or raises UnreadableError.
    """

    line: int | None
    parse: Callable[[], dict[str, Any]]
