"""Groups the segments of the prefix tree into batches for scoring: segments of similar length go through the model together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..core.requests import ScoreRequest
from .limits import Limits
from .prefix_tree import CALL_TOKENS, MIN_PREFIX, SAVING_SHARE, PassageRead, Segment, owned_passages, passage_input

PORTION_BATCHES = 32  # batches after which every started row is finished: rows are saved steadily, and lengths still match well


def scoring_limits(limits: Limits, right_padded: bool) -> Limits:
    """Returns the limits of a scoring batch: one row where rows can't be right-padded and nobody has tried rows of one length."""
    return limits if right_padded or limits.equal_lengths else replace(limits, rows=1)


def fixed_batches(requests: Sequence[ScoreRequest], rows: int, padded_length: Callable[[int], int]) -> list[list[Segment]]:
    """Returns the batches of deterministic mode, widest first. The shape of a passage's batch depends on its length alone.

        width 10   a b c d e f g h i .     rows 3: always as many; dummies stand in for missing passages
                   k l m n o p q r s t
                   0 0 0 0 0 0 0 0 0 0

    ``padded_length`` gives the width that an input of so many tokens is padded to. Inputs of one width share batches, in the order of
    the input. The content of passages plays no part, and the same passage twice is computed twice.
    """
    buckets: dict[int, list[Segment]] = {}
    for passage, owner in owned_passages(requests):
        ids = passage_input(passage)
        width = padded_length(len(ids))
        segment = Segment(np.pad(ids, (0, width - len(ids))), 0, [PassageRead(passage, [owner])], pads=width - len(ids))
        buckets.setdefault(width, []).append(segment)
    batches: list[list[Segment]] = []
    for width, segments in sorted(buckets.items(), reverse=True):
        dummy = Segment(np.zeros(width, np.int32), pads=width)
        for at in range(0, len(segments), rows):
            real = segments[at : at + rows]
            batches.append([*real, *[dummy] * (rows - len(real))])
    return batches


def segment_batches(
    segments: Sequence[Segment], limits: Limits, equal_lengths: bool, held: float = 0.0, *, whole_pictures: bool = False
) -> list[list[Segment]]:
    """Returns which sibling segments go through the model together: first those with children, then the leaves, longest first.

    ``held``: bytes of the KV caches of their parents. A batch keeps to rows, padded tokens, pads and KV bytes; one segment that exceeds the
    tokens goes alone, in chunks. With ``equal_lengths`` only segments of one length share a batch.

    Segments with children share a batch only at one length: all are cut to the shortest, and their children compute the rest. With
    ``whole_pictures`` all are cut before a picture that would be cut. Trees of more than two levels go alone.
    """
    batches = _parent_batches([s for s in segments if s.children], limits, held, whole_pictures)
    for portion in _portions([s for s in segments if not s.children], PORTION_BATCHES * limits.tokens):
        batch: list[Segment] = []
        pads = 0
        for leaf in portion:
            first = batch[0] if batch else leaf
            more = len(first) - len(leaf)
            fits = _fits(len(batch) + 1, len(first), len(first.ids), limits, held) and pads + more <= limits.pads
            if not batch or not fits or (equal_lengths and more):
                batch, pads, more = [], 0, 0
                batches.append(batch)
            batch.append(leaf)
            pads += more
    return batches


def child_turns(children: Sequence[Sequence[Segment]]) -> tuple[list[int], list[list[Segment]]]:
    """Splits the children of B segments into batches: the longest child of each segment, then the second of each, and so on.

    Returns the order of the segments [B], those with most children first, and the batches. Row i of each batch is a child of segment
    order[i], so a later batch only drops rows at the end.
    """
    order = sorted(range(len(children)), key=lambda row: -len(children[row]))
    longest_first = [sorted(children[row], key=lambda child: -len(child)) for row in order]
    return order, [[own[turn] for own in longest_first if len(own) > turn] for turn in range(len(longest_first[0]))]


def _parent_batches(parents: Sequence[Segment], limits: Limits, held: float, whole_pictures: bool) -> list[list[Segment]]:
    batches: list[_ParentBatch] = []
    for parent in sorted(parents, key=lambda s: (-min(s.height, 2), -len(s))):
        if not batches or not batches[-1].takes(parent, limits, held):
            batches.append(_ParentBatch(whole_pictures))
        batches[-1].add(parent)
    return [batch.cut() for batch in batches]


def _portions(leaves: list[Segment], tokens: int) -> Iterator[list[Segment]]:
    """Splits the leaves into portions of about ``tokens``, each longest first. A request's leaves are in one portion, or two in a row."""
    portion: list[Segment] = []
    left = tokens
    for leaf in sorted(leaves, key=lambda s: s.reads[0].owners[0]):
        if portion and len(leaf) > left:
            yield sorted(portion, key=lambda s: -len(s))
            portion, left = [], tokens
        portion.append(leaf)
        left -= len(leaf)
    if portion:
        yield sorted(portion, key=lambda s: -len(s))


@dataclass(slots=True)
class _ParentBatch:
    """Segments with children, longest first, that share a call up to the end of the shortest, or to a picture that this would cut.

    a b c P P P d    With ``whole_pictures`` both are cut to three tokens; else to five.
    e f g h i
    """

    whole_pictures: bool
    segments: list[Segment] = field(default_factory=list[Segment])
    longest: int = 0  # tokens of the longest branch
    deep: bool = False  # the batch holds a tree of more than two levels
    further_children: int = 0  # children of all segments, without the first of each
    further_tokens: int = 0  # tokens computed again if the segments had none of their own: once for each further child

    def takes(self, new: Segment, limits: Limits, held: float) -> bool:
        """Returns True when ``new`` may join: little is computed twice, and memory is left for the children's copies of KV caches."""
        rows, width, longest = len(self.segments) + 1, self.width([*self.segments, new]), max(self.longest, new.longest)
        if self.deep or new.height > 1 or 2 * max(len(new.children), len(self.segments[0].children)) > limits.rows or width < MIN_PREFIX:
            return False
        twice = self.further_tokens - self.further_children * width
        saved = CALL_TOKENS * (1 + len(new.children))  # a batch of its own would take as many calls more
        return twice <= rows * width / SAVING_SHARE + saved and _fits(rows, width, longest, limits, held + limits.kv(rows, longest))

    def add(self, new: Segment) -> None:
        """Adds a segment, no longer than the last."""
        self.segments.append(new)
        self.longest, self.deep = max(self.longest, new.longest), self.deep or new.height > 1
        self.further_children += len(new.children) - 1
        self.further_tokens += (len(new.children) - 1) * len(new)

    def width(self, segments: Sequence[Segment]) -> int:
        """Returns how many tokens the segments would have after the cut. The last is the shortest."""
        width = len(segments[-1])
        while self.whole_pictures and (uncut := min(segment.uncut(width) for segment in segments)) < width:
            width = uncut
        return width

    def cut(self) -> list[Segment]:
        """Returns the segments, all of one length."""
        width = self.width(self.segments)
        return self.segments if len(self.segments) == 1 else [segment.shortened(width) for segment in self.segments]


def _fits(rows: int, width: int, longest: int, limits: Limits, held: float) -> bool:
    """Returns True when ``rows`` rows fit one batch, each with ``width`` tokens to compute, and becoming ``longest``."""
    return rows <= limits.rows and rows * limits.width(width) <= limits.tokens and held + limits.kv(rows, longest) <= limits.kv_bytes
