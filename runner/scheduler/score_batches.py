"""Scoring batches: which segments of the prefix tree go through the model together, in calls of like length.

Pure and deterministic. Knows nothing of models or text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..core.requests import ScoreRequest
from .limits import Limits
from .prefix_tree import CALL, WORTH, Read, Segment, fed_passage, owned_passages

PORTION = 32  # batches in which what is begun is finished: rows are saved all along, and lengths still vary enough to match


def scoring_limits(limits: Limits, right_padded: bool) -> Limits:
    """Returns the limits of a scoring batch: one row where rows can't be right-padded and nobody has tried rows of one length."""
    return limits if right_padded or limits.even else replace(limits, rows=1)


def lone(requests: Sequence[ScoreRequest], rows: int, width: Callable[[int], int]) -> list[list[Segment]]:
    """Batches for deterministic mode, widest first: the shape of a passage's batch is a function of its length alone.

        width 10   a b c d e f g h i .     rows 3: always as many, where passages are missing dummies stand
                   k l m n o p q r s t
                   0 0 0 0 0 0 0 0 0 0

    ``width``: tokens that a feed of so many is padded to; those of one width stand together, in the order of the input.
    Nothing that passages contain enters, and the same passage twice is fed twice.
    """
    buckets: dict[int, list[Segment]] = {}
    for passage, owner in owned_passages(requests):
        feed = fed_passage(passage)
        wide = width(len(feed))
        segment = Segment(np.pad(feed, (0, wide - len(feed))), 0, [Read(passage, [owner])], pads=wide - len(feed))
        buckets.setdefault(wide, []).append(segment)
    found: list[list[Segment]] = []
    for wide, segments in sorted(buckets.items(), reverse=True):
        dummy = Segment(np.zeros(wide, np.int32), pads=wide)
        found += [[*some, *[dummy] * (rows - len(some))] for some in (segments[at : at + rows] for at in range(0, len(segments), rows))]
    return found


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


def child_turns(children: Sequence[Sequence[Segment]]) -> tuple[list[int], list[list[Segment]]]:
    """Splits the children of B segments into batches: the longest child of each segment, then the second of each, and so on.

    Returns the order of the segments [B], those with most children first, and the batches. Row i of each batch is a child of segment
    order[i], so a later batch only drops rows at the end.
    """
    order = sorted(range(len(children)), key=lambda row: -len(children[row]))
    longest_first = [sorted(children[row], key=lambda child: -len(child)) for row in order]
    return order, [[own[turn] for own in longest_first if len(own) > turn] for turn in range(len(longest_first[0]))]


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
