"""Which requests are prefilled together, and when: longest first in a window of shards, by padded tokens and KV bytes.

    window, longest first:  ######## ####### ####### ##### #### #### ### # #
    one prefill:            ^^^^^^^^^^^^^^^^^^^^^^^^  rows x longest <= tokens; the pads are what is missing to a rectangle

Pure and deterministic: the same requests and limits give the same groups. Knows nothing of models or text.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .records import Request


@dataclass(slots=True, frozen=True)
class Limits:
    """What a batch may take. ``rows`` decode at once, ``tokens`` are padded tokens of one prefill, ``kv_bytes`` all caches.

    A cached token costs ``token_bytes``, a row ``row_bytes`` besides. ``even``: only prompts of one length stand together
    (models whose pads are not ignored).
    """

    rows: int
    tokens: int
    kv_bytes: float
    token_bytes: float
    row_bytes: float
    even: bool = False

    def kv(self, rows: int, longest: int) -> float:
        """Bytes of ``rows`` rows in buffers as wide as the longest of them."""
        return rows * (longest * self.token_bytes + self.row_bytes)

    def halved(self, times: int) -> "Limits":
        """Half as many rows and tokens, so many times over; at least one of each."""
        return replace(self, rows=max(1, self.rows >> times), tokens=max(1, self.tokens >> times))

    def most_rows(self, longest: int) -> int:
        """How many rows that become ``longest`` may decode at once: at least one."""
        need = self.kv(1, longest)
        return self.rows if need * self.rows <= self.kv_bytes else max(1, int(self.kv_bytes // need))


@dataclass(slots=True, frozen=True)
class Load:
    """What is in the batch already: its rows, and the longest that one of them can become."""

    rows: int = 0
    longest: int = 0


def longest_first(requests: Iterable[Request]) -> list[Request]:
    """By prompt length, longest first; equals in the order of the input."""
    return sorted(requests, key=lambda r: (-len(r.prompt.ids), r.row))


class Backlog:
    """The requests that wait, refilled window by window.

    ``next_window(wait)`` returns the next window's requests, an empty list while they are not ready (only when not told to
    wait), None when there are no more.
    """

    def __init__(self, next_window: Callable[[bool], list[Request] | None]):
        self._next_window = next_window
        self._waiting: deque[Request] = deque()
        self._ended = False

    def take(self, limits: Limits, load: Load) -> list[Request]:
        """The next group to prefill beside ``load``: empty when nothing fits or waits. Waits for input only when idle."""
        while not self._waiting and not self._ended:
            window = self._next_window(load.rows == 0)
            if window is None:
                self._ended = True
            elif not window:
                return []
            else:
                self._waiting.extend(longest_first(window))
        return group(self._waiting, limits, load)

    def put_back(self, requests: Iterable[Request]) -> None:
        """Requests that were taken wait again."""
        self._waiting = deque(longest_first([*requests, *self._waiting]))


def group(waiting: deque[Request], limits: Limits, load: Load) -> list[Request]:
    """Takes from the front of ``waiting`` the rows that fit one prefill beside ``load``.

    A row that is too large for the token budget alone is prefilled alone, in chunks. One that is too large for the KV
    budget beside others waits; with an empty batch it is taken (whether it fits at all is checked before it is queued).
    """
    taken: list[Request] = []
    rows, longest = load.rows, load.longest
    while waiting:
        request = waiting[0]
        width = len(taken[0].prompt.ids) if taken else len(request.prompt.ids)
        samples = min(len(request.work.samples), limits.most_rows(request.reach))
        after = rows + samples, max(longest, request.reach)
        alone = not taken and load.rows == 0
        if not alone:
            if after[0] > limits.rows or limits.kv(*after) > limits.kv_bytes:
                break
            if taken and width * (len(taken) + 1) > limits.tokens:
                break
            if taken and limits.even and len(request.prompt.ids) != width:
                break
        taken.append(waiting.popleft())
        rows, longest = after
    return taken
