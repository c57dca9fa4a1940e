"""The queue of waiting requests. It orders them window by window, and hands them out in groups that fit one prefill."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..core.arrays import Ids
from ..core.requests import Request
from .limits import Limits, Load


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """A prefix that several prompts of the window share. It is prefilled once, and each prompt continues from a copy of its KV cache.

    ids: [T], all tokens of the prefix. parent: a shorter shared prefix that ``ids`` begin with, or None. in_use: a row that begins
    with this prefix has been handed out, so its KV cache is computed.
    """

    ids: Ids
    parent: "SharedPrefix | None" = None
    in_use: bool = False

    @property
    def own_tokens(self) -> int:
        """Counts the tokens after those of the parent."""
        return len(self.ids) - (len(self.parent.ids) if self.parent else 0)

    @property
    def chain(self) -> Iterator["SharedPrefix"]:
        """Yields this prefix, its parent, the parent's parent, and so on."""
        prefix: SharedPrefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.parent


SharedPrefixes = Mapping[tuple[int, int], SharedPrefix]  # by ``Request.place``: the longest shared prefix of its prompt

WindowOrder = tuple[list[Request], SharedPrefixes]

Arrange = Callable[[Iterable[Request], Limits], WindowOrder]

NO_PREFIXES: SharedPrefixes = MappingProxyType({})


def longest_first(requests: Iterable[Request]) -> list[Request]:
    """Sorts by prompt length, longest first; equal lengths stay in the order of the input."""
    return sorted(requests, key=by_length)


def by_length(request: Request) -> tuple[int, tuple[int, int]]:
    """Returns a key that sorts longest prompts first, and those of one length by their place."""
    return -len(request.prompt.ids), request.place


def share_nothing(requests: Iterable[Request], limits: Limits) -> WindowOrder:
    """Returns the requests longest first, without shared prefixes."""
    return longest_first(requests), NO_PREFIXES


class RequestQueue:
    """The requests that wait, refilled window by window.

    ``next_window(wait)`` returns the next window's requests, and None after the last window. While the requests are not ready it blocks
    if ``wait`` is true, else it returns an empty list. ``arrange`` orders a window and finds its shared prefixes; rows with the same
    shared prefix follow each other.
    """

    def __init__(self, next_window: Callable[[bool], list[Request] | None], arrange: Arrange = share_nothing):
        self._next_window, self._arrange = next_window, arrange
        self._waiting: deque[Request] = deque()
        self._prefixes: SharedPrefixes = NO_PREFIXES
        self._arranged, self._unshared, self._ended = True, False, False

    def take(self, limits: Limits, load: Load) -> list[Request]:
        """Returns the next group to prefill beside ``load``: empty when nothing fits or waits. Waits for input only when idle."""
        while not self._waiting and not self._ended:
            window = self._next_window(load.rows == 0)
            if window is None:
                self._ended = True
            elif not window:
                return []
            else:
                self._waiting.extend(window)
                self._arranged = self._unshared = False
        if not self._arranged:
            requests, self._prefixes = (share_nothing if self._unshared else self._arrange)(self._waiting, limits)
            self._waiting, self._arranged = deque(requests), True
        return next_group(self._waiting, limits, load, self._prefixes)

    def prefix_of(self, request: Request) -> SharedPrefix | None:
        """Returns the shared prefix of a request that was handed out, or None."""
        return self._prefixes.get(request.place)

    def shares_memory(self, request: Request) -> bool:
        """Returns True when a request that was handed out has a shared prefix, or other kept prefixes take memory beside it."""
        return bool(self.prefix_of(request) or self.kept_prefixes)

    @property
    def kept_prefixes(self) -> list[SharedPrefix]:
        """Shared prefixes that are already computed and still needed. They all belong to the next waiting row."""
        return _prefixes_in_use(self._waiting, self._prefixes) if self._arranged else []

    def limits_left(self, limits: Limits) -> Limits:
        """Returns ``limits`` less the KV bytes of the kept prefixes."""
        return limits.minus(_kv_of(self.kept_prefixes, limits))

    def put_back(self, requests: Iterable[Request], unshared: bool = False) -> None:
        """Puts requests back to wait, and arranges the queue anew. With ``unshared``, the rest of the window shares no prefixes."""
        self._waiting = deque([*requests, *self._waiting])
        self._arranged, self._unshared = False, self._unshared or unshared


def next_group(waiting: deque[Request], limits: Limits, load: Load, prefixes: SharedPrefixes = NO_PREFIXES) -> list[Request]:
    """Takes from the front of ``waiting`` the rows that fit one prefill beside ``load``, in order; stops at the first that does not fit.

    A first row that exceeds the token budget is prefilled alone, in chunks. One that exceeds the KV budget waits while other rows
    decode; with an empty batch it is taken, because rows that never fit are refused before they are queued.
    """
    group = _Group(limits, load, _prefixes_in_use(waiting, prefixes))
    while waiting and group.takes(waiting[0], prefixes.get(waiting[0].place)):
        group.rows.append(waiting.popleft())
    return group.rows


class _Group:
    """The rows of one prefill, and what they use of the limits. Shared prefixes, too, take KV bytes and, when new, tokens.

    Rows without a shared prefix are counted as wide as the first of them: longest first, so they are padded to it.
    """

    def __init__(self, limits: Limits, load: Load, prefixes: list[SharedPrefix]):
        self.rows: list[Request] = []
        self._limits, self._load = limits, load
        self._prefixes = prefixes  # whose KV caches are held beside the rows
        self._tokens = self._width = 0

    def takes(self, request: Request, prefix: SharedPrefix | None) -> bool:
        """Counts a request in and returns True if it fits, else returns False."""
        length = len(request.prompt.ids)
        new = [one for one in prefix.chain if one not in self._prefixes] if prefix else []
        width = self._width if prefix else self._width or length
        tokens = sum(one.own_tokens for one in new) + length - len(prefix.ids) if prefix else width
        limits = self._limits.minus(_kv_of([*self._prefixes, *new], self._limits)) if self._prefixes or new else self._limits
        samples = min(len(request.work.samples), limits.most_rows(request.reach))
        load = Load(self._load.rows + samples, max(self._load.longest, request.reach))
        if (self.rows or self._load.rows) and not _decodes_within(load, limits):
            return False
        if self.rows and (self._tokens + tokens > limits.tokens or (limits.equal_lengths and length != width)):
            return False
        for one in new:
            one.in_use = True
        if new:
            self._prefixes = [*self._prefixes, *new]
        self._load, self._tokens, self._width = load, self._tokens + tokens, width
        return True


def _decodes_within(load: Load, limits: Limits) -> bool:
    return load.rows <= limits.rows and limits.kv(load.rows, load.longest) <= limits.kv_bytes


def _kv_of(prefixes: Iterable[SharedPrefix], limits: Limits) -> float:
    return sum(limits.kv(1, len(prefix.ids)) for prefix in prefixes)


def _prefixes_in_use(waiting: deque[Request], prefixes: SharedPrefixes) -> list[SharedPrefix]:
    prefix = prefixes.get(waiting[0].place) if waiting else None
    return [one for one in prefix.chain if one.in_use] if prefix else []
