"""The watch for stop strings: matched on text, across token boundaries, while the tokens come one by one.

Knows a tokenizer only as what turns ids into text.
"""

from collections.abc import Collection
from typing import Protocol

import numpy as np

from ..core.arrays import Ids

BROKEN = "\N{REPLACEMENT CHARACTER}"
UNSETTLED = 64  # tokens that may wait for the rest of a character before they are taken for broken


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
    """Watches one completion's text for stop strings, across token boundaries; a half character waits for its rest."""

    def __init__(self, tokenizer: Decoder, stop: tuple[str, ...], after: int):
        self._tokenizer, self._stop, self._after = tokenizer, stop, after
        self._ids: list[int] = []
        self._text = ""
        self._sure, self._known = "", 0  # text of the first _known ids, which ends with a whole character
        self._back = 0  # as _known, one such place earlier
        self._pushed = 0
        self._reach = max(map(len, stop)) - 1
        self._from = 0  # matches that end at or before this code point do not count

    def push(self, token: int) -> str | None:
        """Takes the next token; the stop string that the text now holds (the earliest; of equals the first listed), or None."""
        before = len(self._text)
        self._pushed += 1
        if token not in self._tokenizer.special:
            self._ids.append(token)
            self._advance()
        if self._pushed <= self._after:
            self._from = len(self._text)
            return None
        where = max(0, min(before, self._from) - self._reach)
        found = [(at, i) for i, s in enumerate(self._stop) if (at := self._find(s, where)) >= 0]
        return self._stop[min(found)[1]] if found else None

    def _find(self, stop: str, where: int) -> int:
        """First place of ``stop`` that ends behind what does not count; -1 where there is none."""
        return self._text.find(stop, max(where, self._from - len(stop) + 1, 0))

    def _advance(self) -> None:
        """Reads the new ids' text. Decoding starts a whole character back, so that spaces come out as in the whole text."""
        known = self._tokenizer.decode(np.array(self._ids[self._back : self._known], np.int32))
        tail = self._tokenizer.decode(np.array(self._ids[self._back :], np.int32))[len(known) :]
        if tail.endswith(BROKEN) and len(self._ids) - self._known <= UNSETTLED:
            self._text = self._sure + tail.rstrip(BROKEN)
            return
        self._text = self._sure = self._sure + tail
        self._back, self._known = self._known, len(self._ids)


def cut_at_stop(text: str, stop: tuple[str, ...], matched: str | None, include: bool, least: int) -> str:
    """A completion's text without the stop string that ended it (with it, when ``include``).

    ``least`` is the number of code points in which stop strings did not count.
    """
    if matched is None or matched not in stop:
        return text
    at = text.find(matched, max(0, least - len(matched) + 1))
    return text if at < 0 else text[: at + len(matched)] if include else text[:at]
