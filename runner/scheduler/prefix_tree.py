"""What is fed once for many: passages of a window become trees of segments, and segments become batches.

    passages  a b c d e x        segments  a b c d e ─┬─ x        tokens that several passages begin with are fed once,
              a b c d e y z                           ├─ y z      what differs stands on top of their caches
              a b c d e y w q                         └─ y w q    (if it saves enough: y is fed twice)

Pure and deterministic; knows nothing of models or text. In deterministic mode nothing is shared and batches have fixed
shapes (``lone``), so that no row's figures depend on what the others contain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.requests import Ids, Passage, ScoreRequest
from .limits import Limits

LEAST = 16  # tokens: a shorter prefix saves less than the call and the copy of its caches cost
CALL = 64  # tokens that take as long as what a call costs besides its tokens: the weights are read, on a CPU packed, in each
WORTH = 8  # a prefix is fed apart where that saves at least an eighth of the tokens: its batches are smaller ones


Owner = tuple[int, int]


@dataclass(slots=True, frozen=True)
class Read:
    """A passage whose logprobs are read along a branch. ``owners``: (request, passage) of each that is the same, and gets the same."""

    passage: Passage
    owners: list[Owner]


@dataclass(slots=True, frozen=True)
class Segment:
    """The tokens of ``feed`` [T] behind its first ``start``, which the segments above have fed; ``children`` stand behind it.

    ``reads`` are all passages that run through it. The logits at a token give the logprob of the token behind it, so a segment
    reads their positions start + 1 … T. The last ``pads`` of the feed stand for nothing.
    """

    feed: Ids
    start: int = 0
    reads: list[Read] = field(default_factory=list[Read])
    children: "list[Segment]" = field(default_factory=list["Segment"])
    pads: int = 0

    def __len__(self) -> int:
        """Tokens that it feeds itself."""
        return len(self.feed) - self.start

    @property
    def height(self) -> int:
        """Levels of segments below."""
        return 1 + max(child.height for child in self.children) if self.children else 0

    @property
    def longest(self) -> int:
        """Tokens of the longest branch, from its first."""
        return max((child.longest for child in self.children), default=len(self.feed))

    def shortened(self, length: int) -> "Segment":
        """The same with ``length`` tokens; those behind them are fed by each of the children, which have none themselves."""
        end = self.start + length
        return replace(self, feed=self.feed[:end], children=[replace(child, start=end) for child in self.children])


def fed_passage(passage: Passage) -> Ids:
    """The tokens that are fed to score a passage: all before the last position scored."""
    return passage.ids[: passage.positions[-1]]


def bucket(length: int) -> int:
    """The least m · 2^k that holds ``length`` tokens, where m is one of 8 … 15: at most an eighth of pads, but for fewer than 8."""
    step = 1 << max(0, (length - 1).bit_length() - 4)
    return max(8, -(-length // step) * step)


def owned_passages(requests: Sequence[ScoreRequest]) -> list[tuple[Passage, Owner]]:
    """All passages, each with the index of its request and its own index within it."""
    return [(p, (i, j)) for i, request in enumerate(requests) for j, p in enumerate(request.passages) if len(p.positions)]


def _key(passage: Passage) -> tuple[int, bytes, bytes]:
    """Equal for passages that score the same tokens behind the same tokens."""
    length = int(passage.positions[-1])
    return length, sort_key(passage.ids[: length + 1]), sort_key(passage.positions)


def sort_key(ids: Ids) -> bytes:
    """Bytes that compare as the ids do, token by token."""
    return ids.astype(">u4").tobytes()


def forest(requests: Sequence[ScoreRequest], limits: Limits, shared: bool) -> list[Segment]:
    """The segments at which no other stands above, with all that stands behind them. Each position is read at one segment.

    What is fed in full by a longer passage is not fed apart, and ``shared`` prefixes are fed once. Without it only equal feeds are.
    """
    feeds, reads = _feeds(requests, merged=shared)
    if not shared:
        return [Segment(feed, 0, own) for feed, own in zip(feeds, reads, strict=True)]
    top: list[Segment] = []
    below: dict[Prefix | None, list[Segment]] = {None: top}
    for prefix in prefixes(feeds, limits):
        if prefix.end is None:
            below[prefix.above].append(Segment(feeds[prefix.low], prefix.start, reads[prefix.low]))
            continue
        stem = Segment(feeds[prefix.low][: prefix.end], prefix.start, [read for own in reads[prefix.low : prefix.high] for read in own])
        below[prefix.above].append(stem)
        below[prefix] = stem.children
    return top


@dataclass(slots=True, frozen=True, eq=False)
class Prefix:
    """What feeds low … high - 1 begin with behind the prefix ``above``: their tokens start … end - 1, which are fed once.

    ``end`` is None for the rest of one feed, from ``start`` on.
    """

    low: int
    high: int
    start: int
    end: int | None
    above: "Prefix | None"


def prefixes(feeds: Sequence[Ids], limits: Limits, grown: Sequence[int] | None = None, least: int = 0) -> Iterator[Prefix]:
    """The prefixes that are fed once, each before what stands behind it, and the rest of each feed.

    ``feeds`` are in the order of their ids. ``grown``: tokens that each feed is to become, where those are not its own. A prefix
    saves ``least`` tokens at least.
    """
    common = np.array([0] + [_common(a, b) for a, b in pairwise(feeds)], np.int64)
    lengths = np.array([len(feed) for feed in feeds], np.int64)
    becomes = lengths if grown is None else np.array(grown, np.int64)
    none: Prefix | None = None
    open_ranges = [(0, len(feeds), 0, 0.0, none)] if feeds else []
    while open_ranges:  # feeds low … high - 1 stand behind `base` tokens, whose caches and those above take `held` bytes
        low, high, base, held, above = open_ranges.pop()
        if high - low == 1:
            yield Prefix(low, high, base, None, above)
            continue
        inner = common[low + 1 : high]
        depth = int(inner.min())
        saves = (depth - base) * (high - low - 1)
        if saves >= least and _pays(limits, depth - base, lengths[low:high], int(becomes[low:high].max()), base, held):
            above = Prefix(low, high, base, depth, above)
            yield above
            base, held = depth, held + limits.kv(1, depth)
        cuts = [low, *(low + 1 + np.flatnonzero(inner == depth)).tolist(), high]
        open_ranges += [(a, b, base, held, above) for a, b in pairwise(cuts)]


def _pays(limits: Limits, saved: int, lengths: NDArray[np.int64], longest: int, base: int, held: float) -> bool:
    """Whether ``saved`` tokens that all of the feeds have in common behind ``base`` are fed apart: worth it, and there is room."""
    if saved < LEAST or WORTH * saved * (len(lengths) - 1) < (lengths - base).sum():
        return False
    return held + limits.kv(1, base + saved) + limits.kv(1, longest) <= limits.kv_bytes


def _feeds(requests: Sequence[ScoreRequest], merged: bool) -> tuple[list[Ids], list[list[Read]]]:
    """What has to be fed, in the order of its ids, and what is read there. ``merged``: not what begins the next feed."""
    reads: dict[tuple[int, bytes, bytes], Read] = {}
    for passage, owner in owned_passages(requests):
        read = reads.setdefault(_key(passage), Read(passage, []))
        read.owners.append(owner)
    feeds: list[Ids] = []
    own: list[list[Read]] = []
    for feed, read in sorted(((fed_passage(read.passage), read) for read in reads.values()), key=lambda x: sort_key(x[0])):
        if feeds and _common(feeds[-1], feed) == len(feeds[-1]) and (merged or len(feed) == len(feeds[-1])):
            feeds[-1] = feed
            own[-1].append(read)
        else:
            feeds.append(feed)
            own.append([read])
    return feeds, own


def _common(a: Ids, b: Ids) -> int:
    """How many tokens two feeds begin alike."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(differ.argmax()) if differ.any() else n
