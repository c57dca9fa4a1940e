"""Builds trees of shared prefixes, so that tokens which several passages begin with go through the model once.

    passages  a b c d e x        segments  a b c d e ─┬─ x        shared tokens are computed once; children continue
              a b c d e y z                           ├─ y z      from a copy of their parent's KV cache
              a b c d e y w q                         └─ y w q    (y is computed twice: sharing it would save too little)

In deterministic mode nothing is shared, so that a row's figures don't depend on other rows (see ``fixed_batches``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Ids
from ..core.images import continues
from ..core.requests import Passage, ScoreRequest
from .limits import Limits

MIN_PREFIX = 16  # tokens: sharing fewer saves less than the extra call and the copy of the KV cache cost
CALL_TOKENS = 64  # tokens that take as long as a call's fixed cost: each call reads the weights (and packs them, on a CPU)
SAVING_SHARE = 8  # a prefix is shared only if it saves an eighth of the tokens, because it makes batches smaller


Owner = tuple[int, int]


@dataclass(slots=True, frozen=True)
class PassageRead:
    """A passage whose logprobs are read along a branch. ``owners``: (request, passage) of each equal passage; all get the same scores."""

    passage: Passage
    owners: list[Owner]


@dataclass(slots=True, frozen=True)
class Segment:
    """A node of the tree: the tokens ``ids[start:]``, after the first ``start`` that its parents compute. ids: [T].

    ``reads`` are all passages that run through the segment. The logits at a token give the logprob of the next token, so a segment
    gives those of positions start + 1 … T. The last ``pads`` ids are padding.
    """

    ids: Ids
    start: int = 0
    reads: list[PassageRead] = field(default_factory=list[PassageRead])
    children: "list[Segment]" = field(default_factory=list["Segment"])
    pads: int = 0

    def __len__(self) -> int:
        """Counts the segment's own tokens."""
        return len(self.ids) - self.start

    @property
    def height(self) -> int:
        """Counts the levels of segments below."""
        return 1 + max(child.height for child in self.children) if self.children else 0

    @property
    def longest(self) -> int:
        """Counts the tokens of the longest branch through this segment, from the first token on."""
        return max((child.longest for child in self.children), default=len(self.ids))

    def uncut(self, length: int) -> int:
        """Returns the most of its own tokens, at most ``length``, behind which no picture goes on."""
        own = self.ids[self.start : self.start + length + 1]
        ends = 1 + np.flatnonzero(~continues(own[:-1], own[1:]))
        return len(self) if length >= len(self) else int(ends[-1]) if len(ends) else 0

    def shortened(self, length: int) -> "Segment":
        """Returns the segment cut to ``length`` tokens. Each child takes over the rest; the children must be leaves."""
        end = self.start + length
        return replace(self, ids=self.ids[:end], children=[replace(child, start=end) for child in self.children])


def passage_input(passage: Passage) -> Ids:
    """Returns the tokens that go through the model to score a passage: all before the last position scored."""
    return passage.ids[: passage.positions[-1]]


def bucket_length(length: int) -> int:
    """Returns the least m · 2^k, with m in 8 … 15, that holds ``length`` tokens. Padding is at most an eighth, from 8 tokens on."""
    step = 1 << max(0, (length - 1).bit_length() - 4)
    return max(8, -(-length // step) * step)


def owned_passages(requests: Sequence[ScoreRequest]) -> list[tuple[Passage, Owner]]:
    """Lists all passages with something to score, each with the index of its request and its own index within the request."""
    return [(p, (i, j)) for i, request in enumerate(requests) for j, p in enumerate(request.passages) if len(p.positions)]


def _passage_key(passage: Passage) -> tuple[int, bytes, bytes]:
    """Returns a key that is equal for passages which score the same tokens after the same tokens."""
    length = int(passage.positions[-1])
    return length, sort_key(passage.ids[: length + 1]), sort_key(passage.positions)


def sort_key(ids: Ids) -> bytes:
    """Returns bytes that compare as the ids do, token by token."""
    return ids.astype(">u4").tobytes()


def common_length(a: Ids, b: Ids) -> int:
    """Counts the tokens that ``a`` and ``b`` both begin with."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def forest(requests: Sequence[ScoreRequest], limits: Limits, shared: bool) -> list[Segment]:
    """Returns the root segments of all passages of ``requests``. Each position is read at one segment.

    With ``shared``, a common prefix is one segment, and a passage that a longer one begins with needs no segment of its own. Without
    it only passages with equal inputs share one.
    """
    inputs, reads = _distinct_inputs(requests, merged=shared)
    if not shared:
        return [Segment(ids, 0, own) for ids, own in zip(inputs, reads, strict=True)]
    roots: list[Segment] = []
    children: dict[PrefixRange | None, list[Segment]] = {None: roots}
    for span in prefix_ranges(inputs, limits):
        if span.end is None:
            children[span.parent].append(Segment(inputs[span.low], span.start, reads[span.low]))
            continue
        segment = Segment(inputs[span.low][: span.end], span.start, [read for own in reads[span.low : span.high] for read in own])
        children[span.parent].append(segment)
        children[span] = segment.children
    return roots


@dataclass(slots=True, frozen=True, eq=False)
class PrefixRange:
    """Tokens start … end - 1, which inputs low … high - 1 share after the prefix ``parent``. They are computed once.

    ``end`` is None for the rest of one input, from ``start`` on.
    """

    low: int
    high: int
    start: int
    end: int | None
    parent: "PrefixRange | None"


def prefix_ranges(
    inputs: Sequence[Ids], limits: Limits, final_lengths: Sequence[int] | None = None, min_saved: int = 0
) -> Iterator[PrefixRange]:
    """Yields the prefixes worth sharing, each before its children, and the rest of each input.

    ``inputs`` are sorted by their ids. ``final_lengths``: tokens that each row becomes while it decodes; by default its input's own. A
    prefix saves at least ``min_saved`` tokens.
    """
    common = np.array([0] + [common_length(a, b) for a, b in pairwise(inputs)], np.int64)
    lengths = np.array([len(ids) for ids in inputs], np.int64)
    final = lengths if final_lengths is None else np.array(final_lengths, np.int64)
    root: PrefixRange | None = None
    open_ranges = [(0, len(inputs), 0, 0.0, root)] if inputs else []
    while open_ranges:  # inputs low … high - 1 continue after `base` tokens, whose KV caches take `held` bytes with their parents'
        low, high, base, held, parent = open_ranges.pop()
        if high - low == 1:
            yield PrefixRange(low, high, base, None, parent)
            continue
        inner = common[low + 1 : high]
        depth = int(inner.min())
        saved = (depth - base) * (high - low - 1)
        if saved >= min_saved and _pays(limits, depth - base, lengths[low:high], int(final[low:high].max()), base, held):
            parent = PrefixRange(low, high, base, depth, parent)
            yield parent
            base, held = depth, held + limits.kv(1, depth)
        cuts = [low, *(low + 1 + np.flatnonzero(inner == depth)).tolist(), high]
        open_ranges += [(a, b, base, held, parent) for a, b in pairwise(cuts)]


def _pays(limits: Limits, tokens: int, lengths: NDArray[np.int64], longest: int, base: int, held: float) -> bool:
    """Returns True when sharing ``tokens`` after ``base`` saves enough for inputs of ``lengths`` [N], and leaves memory for a row."""
    if tokens < MIN_PREFIX or SAVING_SHARE * tokens * (len(lengths) - 1) < (lengths - base).sum():
        return False
    return held + limits.kv(1, base + tokens) + limits.kv(1, longest) <= limits.kv_bytes


def _distinct_inputs(requests: Sequence[ScoreRequest], merged: bool) -> tuple[list[Ids], list[list[PassageRead]]]:
    """Returns the different inputs, sorted by their ids, and the reads of each. ``merged``: leaves out one that begins another."""
    reads: dict[tuple[int, bytes, bytes], PassageRead] = {}
    for passage, owner in owned_passages(requests):
        read = reads.setdefault(_passage_key(passage), PassageRead(passage, []))
        read.owners.append(owner)
    inputs: list[Ids] = []
    own: list[list[PassageRead]] = []
    for ids, read in sorted(((passage_input(read.passage), read) for read in reads.values()), key=lambda x: sort_key(x[0])):
        if inputs and common_length(inputs[-1], ids) == len(inputs[-1]) and (merged or len(ids) == len(inputs[-1])):
            inputs[-1] = ids
            own[-1].append(read)
        else:
            inputs.append(ids)
            own.append([read])
    return inputs, own
