"""Finds stop strings in a completion's text, across token boundaries, while its tokens come one by one.

Knows a tokenizer only as a function from ids to text.
"""

from collections.abc import Collection
from typing import Protocol

import numpy as np

from ..core.arrays import Ids

BROKEN = "\N{REPLACEMENT CHARACTER}"
UNSETTLED = 64  # tokens that may wait for the rest of a character; then they count as broken


class Decoder(Protocol):
    """Turns token ids into text."""

    @property
    def special(self) -> Collection[int]:
        """Ids that have no text."""
        ...

    def decode(self, ids: Ids) -> str:
        """Text of token ids, without special tokens."""
        ...


class StopStrings:
    """Watches one completion for stop strings. A half character waits for its rest.

    Matches within the first ``after`` tokens don't count.
    """

    def __init__(self, tokenizer: Decoder, stop: tuple[str, ...], after: int):
        self._tokenizer, self._stop, self._after = tokenizer, stop, after
        self._ids: list[int] = []
        self._text = ""
        self._settled, self._settled_ids = "", 0  # text of the first _settled_ids ids, which ends with a whole character
        self._previous = 0  # the _settled_ids before that
        self._pushed = 0
        self._reach = max(map(len, stop)) - 1
        self._from = 0  # matches that end at or before this code point do not count

    def push(self, token: int) -> str | None:
        """Adds the next token. Returns the stop string that the text now holds, or None: the earliest, and of equals the first listed."""
        before = len(self._text)
        self._pushed += 1
        if token not in self._tokenizer.special:
            self._ids.append(token)
            self._advance()
        if self._pushed <= self._after:
            self._from = len(self._text)
            return None
        where = max(0, min(before, self._from) - self._reach)
        matches = [(at, i) for i, s in enumerate(self._stop) if (at := self._find(s, where)) >= 0]
        return self._stop[min(matches)[1]] if matches else None

    def _find(self, stop: str, where: int) -> int:
        """Returns the first place of ``stop`` whose end counts, or -1."""
        return self._text.find(stop, max(where, self._from - len(stop) + 1, 0))

    def _advance(self) -> None:
        """Decodes the new ids. It starts one settled place earlier, so that spaces come out as in the whole text."""
        before = self._tokenizer.decode(np.array(self._ids[self._previous : self._settled_ids], np.int32))
        tail = self._tokenizer.decode(np.array(self._ids[self._previous :], np.int32))[len(before) :]
        if tail.endswith(BROKEN) and len(self._ids) - self._settled_ids <= UNSETTLED:
            self._text = self._settled + tail.rstrip(BROKEN)
            return
        self._text = self._settled = self._settled + tail
        self._previous, self._settled_ids = self._settled_ids, len(self._ids)


def cut_at_stop(text: str, stop: tuple[str, ...], matched: str | None, include: bool, least: int) -> str:
    """Returns a completion's text without the stop string that ended it, or with it if ``include``.

    ``least``: code points at the beginning in which stop strings did not count.
    """
    if matched is None or matched not in stop:
        return text
    at = text.find(matched, max(0, least - len(matched) + 1))
    return text if at < 0 else text[: at + len(matched)] if include else text[:at]
