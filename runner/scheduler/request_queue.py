"""The queue of waiting requests: ordered window by window, taken in groups that fit one prefill.

Pure and deterministic. Knows nothing of models or text.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..core.requests import Ids, Request
from .limits import Limits, Load


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """A prefix that several prompts of the window begin with: it is prefilled once, and they on top of copies of its caches.

    ids: [T], all of its tokens; the first of them are those of the stem ``above``, where it stands on one. begun: a row behind it
    was taken.
    """

    ids: Ids
    above: "SharedPrefix | None" = None
    begun: bool = False

    @property
    def own(self) -> int:
        """Tokens that are fed for it itself."""
        return len(self.ids) - (len(self.above.ids) if self.above else 0)

    @property
    def chain(self) -> Iterator["SharedPrefix"]:
        """It and all that it stands on."""
        stem: SharedPrefix | None = self
        while stem is not None:
            yield stem
            stem = stem.above


SharedPrefixes = Mapping[int, SharedPrefix]  # by the row whose prompt begins with it


Arranged = tuple[list[Request], SharedPrefixes]


Arrange = Callable[[Iterable[Request], Limits], Arranged]


NO_PREFIXES: SharedPrefixes = MappingProxyType({})


def longest_first(requests: Iterable[Request]) -> list[Request]:
    """By prompt length, longest first; equals in the order of the input."""
    return sorted(requests, key=lambda r: (-len(r.prompt.ids), r.row))


def nothing_shared(requests: Iterable[Request], limits: Limits) -> Arranged:
    """The requests longest first, each by itself."""
    return longest_first(requests), NO_PREFIXES


class RequestQueue:
    """The requests that wait, refilled window by window.

    ``next_window(wait)`` returns the next window's requests, an empty list while they are not ready (only when not told to
    wait), None when there are no more. ``arrange`` gives the order in which they are taken, and the stems that they stand on: those
    behind one stem follow each other.
    """

    def __init__(
        self,
        next_window: Callable[[bool], list[Request] | None],
        arrange: Arrange = nothing_shared,
    ):
        self._next_window, self._arrange = next_window, arrange
        self._waiting: deque[Request] = deque()
        self._stems: SharedPrefixes = NO_PREFIXES
        self._arranged, self._apart, self._ended = True, False, False

    def take(self, limits: Limits, load: Load) -> list[Request]:
        """The next group to prefill beside ``load``: empty when nothing fits or waits. Waits for input only when idle."""
        while not self._waiting and not self._ended:
            window = self._next_window(load.rows == 0)
            if window is None:
                self._ended = True
            elif not window:
                return []
            else:
                self._waiting.extend(window)
                self._arranged = self._apart = False
        if not self._arranged:
            requests, self._stems = (nothing_shared if self._apart else self._arrange)(self._waiting, limits)
            self._waiting, self._arranged = deque(requests), True
        return group(self._waiting, limits, load, self._stems)

    def stem(self, request: Request) -> SharedPrefix | None:
        """What a request that was taken is prefilled on top of."""
        return self._stems.get(request.row)

    def shares(self, request: Request) -> bool:
        """Whether a request that was taken stands on a stem, or beside some that are kept."""
        return bool(self.stem(request) or self.begun)

    @property
    def begun(self) -> list[SharedPrefix]:
        """The stems that were prefilled and that rows still wait behind: all are the next row's."""
        return _begun(self._waiting, self._stems) if self._arranged else []

    def room(self, limits: Limits) -> Limits:
        """What such stems leave of ``limits``."""
        return limits.less(sum(limits.kv(1, len(stem.ids)) for stem in self.begun))

    def put_back(self, requests: Iterable[Request], apart: bool = False) -> None:
        """Requests that were taken wait again, and all begin anew. ``apart``: what is left of the window shares nothing."""
        self._waiting = deque([*requests, *self._waiting])
        self._arranged, self._apart = False, self._apart or apart


def group(waiting: deque[Request], limits: Limits, load: Load, stems: SharedPrefixes = NO_PREFIXES) -> list[Request]:
    """Takes from the front of ``waiting`` the rows that fit one prefill beside ``load``.

    A row that is too large for the token budget alone is prefilled alone, in chunks. One that is too large for the KV
    budget beside others waits; with an empty batch it is taken (whether it fits at all is checked before it is queued).
    Of a row behind a stem only what follows is fed, and the stem too where it is the first; stems take their part of the KV budget.
    """
    taken: list[Request] = []
    rows, longest, fed, width = load.rows, load.longest, 0, 0
    here = _begun(waiting, stems)
    while waiting:
        request = waiting[0]
        length, stem = len(request.prompt.ids), stems.get(request.row)
        new = [one for one in stem.chain if one not in here] if stem else []
        width = width if stem else (width or length)
        tokens = sum(one.own for one in new) + (length - len(stem.ids) if stem else width)
        within = limits.less(sum(limits.kv(1, len(one.ids)) for one in (*here, *new)))
        samples = min(len(request.work.samples), within.most_rows(request.reach))
        after = rows + samples, max(longest, request.reach)
        alone = not taken and load.rows == 0
        if not alone:
            if after[0] > limits.rows or within.kv(*after) > within.kv_bytes:
                break
            if taken and fed + tokens > limits.tokens:
                break
            if taken and limits.even and length != width:
                break
        for one in new:
            one.begun = True
        here += new
        taken.append(waiting.popleft())
        (rows, longest), fed = after, fed + tokens
    return taken


def _begun(waiting: deque[Request], stems: SharedPrefixes) -> list[SharedPrefix]:
    stem = stems.get(waiting[0].row) if waiting else None
    return [one for one in stem.chain if one.begun] if stem else []
