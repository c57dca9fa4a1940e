"""What is fed once for many: passages of a window become trees of segments, and segments become batches.

    passages  a b c d e x        segments  a b c d e ─┬─ x        tokens that several passages begin with are fed once,
              a b c d e y z                           ├─ y z      what differs stands on top of their caches
              a b c d e y w q                         └─ y w q    (if it saves enough: y is fed twice)

Pure and deterministic; knows nothing of models or text. In deterministic mode nothing is shared and batches have fixed
shapes (``lone``), so that no row's figures depend on what the others contain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.requests import Ids, Passage, ScoreRequest
from .limits import Limits

LEAST = 16  # tokens: a shorter prefix saves less than the call and the copy of its caches cost
CALL = 64  # tokens that take as long as what a call costs besides its tokens: the weights are read, on a CPU packed, in each
WORTH = 8  # a prefix is fed apart where that saves at least an eighth of the tokens: its batches are smaller ones

PORTION = 32  # batches in which what is begun is finished: rows are saved all along, and lengths still vary enough to match

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


def fed(passage: Passage) -> Ids:
    """The tokens that are fed to score a passage: all before the last position scored."""
    return passage.ids[: passage.positions[-1]]


def lone(requests: Sequence[ScoreRequest], rows: int, width: Callable[[int], int]) -> list[list[Segment]]:
    """Batches for deterministic mode, widest first: the shape of a passage's batch is a function of its length alone.

        width 10   a b c d e f g h i .     rows 3: always as many, where passages are missing dummies stand
                   k l m n o p q r s t
                   0 0 0 0 0 0 0 0 0 0

    ``width``: tokens that a feed of so many is padded to; those of one width stand together, in the order of the input.
    Nothing that passages contain enters, and the same passage twice is fed twice.
    """
    buckets: dict[int, list[Segment]] = {}
    for passage, owner in _passages(requests):
        feed = fed(passage)
        wide = width(len(feed))
        segment = Segment(np.pad(feed, (0, wide - len(feed))), 0, [Read(passage, [owner])], pads=wide - len(feed))
        buckets.setdefault(wide, []).append(segment)
    found: list[list[Segment]] = []
    for wide, segments in sorted(buckets.items(), reverse=True):
        dummy = Segment(np.zeros(wide, np.int32), pads=wide)
        found += [[*some, *[dummy] * (rows - len(some))] for some in (segments[at : at + rows] for at in range(0, len(segments), rows))]
    return found


def bucket(length: int) -> int:
    """The least m · 2^k that holds ``length`` tokens, where m is one of 8 … 15: at most an eighth of pads, but for fewer than 8."""
    step = 1 << max(0, (length - 1).bit_length() - 4)
    return max(8, -(-length // step) * step)


def _passages(requests: Sequence[ScoreRequest]) -> list[tuple[Passage, Owner]]:
    return [(p, (i, j)) for i, request in enumerate(requests) for j, p in enumerate(request.passages) if len(p.positions)]


def _key(passage: Passage) -> tuple[int, bytes, bytes]:
    """Equal for passages that score the same tokens behind the same tokens."""
    length = int(passage.positions[-1])
    return length, in_order(passage.ids[: length + 1]), in_order(passage.positions)


def in_order(ids: Ids) -> bytes:
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
    for passage, owner in _passages(requests):
        read = reads.setdefault(_key(passage), Read(passage, []))
        read.owners.append(owner)
    feeds: list[Ids] = []
    own: list[list[Read]] = []
    for feed, read in sorted(((fed(read.passage), read) for read in reads.values()), key=lambda x: in_order(x[0])):
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


def batches(segments: Sequence[Segment], limits: Limits, even: bool, held: float = 0.0) -> list[list[Segment]]:
    """Which segments are fed together: those with children, then the others in portions, longest first. ``held``: bytes of the
    caches that they stand on.

    A batch keeps to rows, padded tokens and KV bytes; one segment that exceeds the tokens is fed alone, in chunks. ``even``:
    only segments of one length stand together. Segments with children always are of one length: what a batch of them exceeds
    its shortest by is fed by the children. Trees of more than two levels are fed alone.
    """
    found: list[list[Segment]] = []
    together: _Together | None = None
    for stem in sorted((s for s in segments if s.children), key=lambda s: (-min(s.height, 2), -len(s))):
        if together is None or not together.takes(stem, limits, held):
            together = _Together()
            found.append(together.stems)
        together.add(stem)
    found = [[stem.shortened(len(batch[-1])) for stem in batch] if len(batch) > 1 else batch for batch in found]
    for portion in _portions([s for s in segments if not s.children], PORTION * limits.tokens):
        open_batch: list[Segment] = []
        for leaf in portion:
            first = open_batch[0] if open_batch else leaf
            fits = _fits(len(open_batch) + 1, len(first), len(first.feed), limits, held)
            if not open_batch or not fits or (even and len(leaf) != len(first)):
                open_batch = []
                found.append(open_batch)
            open_batch.append(leaf)
    return found


def _portions(leaves: list[Segment], tokens: int) -> Iterator[list[Segment]]:
    """The leaves in portions of about ``tokens``, each longest first; a request's own stand together, or in two portions that follow."""
    portion: list[Segment] = []
    room = tokens
    for leaf in sorted(leaves, key=lambda s: s.reads[0].owners[0]):
        if portion and len(leaf) > room:
            yield sorted(portion, key=lambda s: -len(s))
            portion, room = [], tokens
        portion.append(leaf)
        room -= len(leaf)
    if portion:
        yield sorted(portion, key=lambda s: -len(s))


@dataclass(slots=True)
class _Together:
    """Segments with children, longest first, that are fed in one call up to the end of the shortest."""

    stems: list[Segment] = field(default_factory=list[Segment])
    longest: int = 0  # tokens of the longest branch
    apart: bool = False  # it is a tree of more levels
    others: int = 0  # children less one, of all
    tokens: int = 0  # that would be fed again if the stems had no tokens of their own: for each child but one

    def takes(self, new: Segment, limits: Limits, held: float) -> bool:
        """Whether ``new`` is fed with these: where little has to be fed twice. The children's turns may need copies of the caches."""
        rows, width, longest = len(self.stems) + 1, len(new), max(self.longest, new.longest)
        if self.apart or new.height > 1 or 2 * max(len(new.children), len(self.stems[0].children)) > limits.rows:
            return False
        twice = self.tokens - self.others * width
        saved = CALL * (1 + len(new.children))  # with a batch of its own, it would be fed in as many calls
        return twice <= rows * width / WORTH + saved and _fits(rows, width, longest, limits, held + limits.kv(rows, longest))

    def add(self, new: Segment) -> None:
        """One more."""
        self.stems.append(new)
        self.longest, self.apart = max(self.longest, new.longest), self.apart or new.height > 1
        self.others += len(new.children) - 1
        self.tokens += (len(new.children) - 1) * len(new)


def _fits(rows: int, width: int, longest: int, limits: Limits, held: float) -> bool:
    """Whether so many rows of which ``width`` tokens are fed, and that become ``longest``, are one batch."""
    return rows <= limits.rows and rows * width <= limits.tokens and held + limits.kv(rows, longest) <= limits.kv_bytes
