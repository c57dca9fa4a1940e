"""What a run will ask of the model, counted before there is one: calls, tokens, pads, decode steps, KV bytes at the peak.

Goes the engine's and the scorer's ways through the very planner that they use, with lengths in place of tokens that nobody
has generated. Knows no model, no time and no text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from typing import Self

from ..core.requests import Request, Sample, ScoreRequest
from ..engine.setup import Setup
from ..scheduler.admission import joining_rows, may_join
from ..scheduler.limits import Limits, Load
from ..scheduler.prefill_calls import call_width, prefill_calls
from ..scheduler.prefix_tree import Segment, bucket_length, forest, passage_input
from ..scheduler.prompt_prefixes import arrangement
from ..scheduler.request_queue import Arrange, RequestQueue, SharedPrefix
from ..scheduler.score_batches import child_turns, fixed_batches, scoring_limits, segment_batches

Lengths = Callable[[Request, Sample], int]

PEAKS = ("rows", "kv_bytes")


@dataclass(slots=True)
class Work:
    """Sums, by the names of ``engine.Progress`` where that counts the same; ``calls`` are batches fed (prefills, or scored ones).

    Peaks: ``rows`` of a batch, and ``kv_bytes`` of its caches.
    """

    calls: int = 0
    prefilled: int = 0
    padded: int = 0
    steps: int = 0
    generated: int = 0
    places: int = 0
    scored: int = 0
    rows: int = 0
    kv_bytes: float = 0.0

    @property
    def padding_waste(self) -> float:
        """The share of pads in what is fed."""
        return 1 - self.prefilled / self.padded if self.padded else 0.0

    def feed(self, rows: int, tokens: int, padded: int) -> None:
        """Counts one batch."""
        self.calls += 1
        self.prefilled += tokens
        self.padded += padded
        self.rows = max(self.rows, rows)

    def hold(self, rows: int, kv_bytes: float) -> None:
        """Takes in what a batch holds."""
        self.rows, self.kv_bytes = max(self.rows, rows), max(self.kv_bytes, kv_bytes)

    def add(self, other: "Work") -> None:
        """Takes in what is done after this."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, theirs) if each.name in PEAKS else mine + theirs)

    def times(self, factor: float) -> Self:
        """The same work for so many times the rows; peaks stay."""
        sums = [each.name for each in fields(self) if each.name not in PEAKS]
        return replace(self, **{name: round(factor * getattr(self, name)) for name in sums})


def decoding(windows: Iterable[list[Request]], setup: Setup, length: Lengths, arrange: Arrange | None = None) -> Work:
    """What the engine does for all ``windows`` if each completion has as many tokens as ``length`` says (at least one).

    ``arrange``: how windows were arranged whose requests have no ids any more.
    """
    flight, rest = _Flight(setup, length), iter(windows)
    backlog = RequestQueue(lambda wait: next(rest, None), arrange or arrangement(setup.shares))
    while True:
        admitted = flight.admit(backlog)
        if not flight.ends:
            return flight.work
        flight.advance(1 if admitted else None)


@dataclass(slots=True)
class _Flight:
    """The batch that decodes: of each row the step at which it ends, and how long it may become."""

    setup: Setup
    length: Lengths
    work: Work = field(default_factory=Work)
    ends: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # a heap
    parked: list[tuple[Request, Sample]] = field(default_factory=list[tuple[Request, Sample]])  # prefilled, without a slot
    kept: set[SharedPrefix] = field(default_factory=set[SharedPrefix])  # prefixes whose caches are kept

    @property
    def load(self) -> Load:
        return Load(len(self.ends), max((reach for _, reach in self.ends), default=0))

    def admit(self, backlog: RequestQueue) -> bool:
        """Fills free slots as the engine does once a turn; whether anything changed."""
        limits, load = self.setup.limits, self.load
        if not may_join(limits, load.rows, self.setup.joins):
            return False
        if not self.parked:
            requests = backlog.take(self.setup.group_limits, load)
            if not requests:
                return False
            self._prefill(requests, backlog)
        longest = max(load.longest, *(request.reach for request, _ in self.parked))
        free = joining_rows(backlog.limits_left(self.setup.group_limits), load, [longest])
        now, self.parked = self.parked[:free], self.parked[free:]
        for request, sample in now:
            heappush(self.ends, (self.work.steps + max(1, self.length(request, sample)), request.reach))
        self.work.hold(len(self.ends), limits.kv(len(self.ends), longest) + sum(limits.kv(1, len(stem.ids)) for stem in self.kept))
        return bool(now)

    def _prefill(self, requests: Sequence[Request], backlog: RequestQueue) -> None:
        stems = [backlog.prefix_of(request) for request in requests]
        new = {one for stem in stems if stem for one in stem.chain} - self.kept
        once = sum(stem.own_tokens for stem in new)
        lengths = [len(r.prompt.ids) - 1 - (len(stem.ids) if stem else 0) for r, stem in zip(requests, stems, strict=True)]
        starts = [len(stem.ids) if stem else 0 for stem in stems]
        calls = prefill_calls(lengths, starts, padded=self.setup.padded, ragged=self.setup.ragged, static=self.setup.static)
        padded = once + sum(len(call) * call_width([lengths[row] for row in call]) for call in calls)
        self.kept = set(backlog.kept_prefixes)
        self.work.feed(len(requests), once + sum(lengths), padded)
        self.parked = [(request, sample) for request in requests for sample in request.work.samples]

    def advance(self, steps: int | None) -> None:
        """Decodes so many steps, or until a row leaves; in a static batch all leave together."""
        static, now = self.setup.static, self.work.steps
        last = max(end for end, _ in self.ends) if static else self.ends[0][0]
        until = last if static or steps is None else min(last, now + steps)
        self.work.generated += sum(min(end, until) - now for end, _ in self.ends)
        self.work.places += (until - now) * self.setup.limits.rows
        self.work.steps = until
        while self.ends and self.ends[0][0] <= until:
            heappop(self.ends)


def scoring_work(requests: Sequence[ScoreRequest], setups: Sequence[Setup]) -> Work:
    """What the scorer does for one window of ``requests`` with one model, or with a reference beside it."""
    first, work = setups[0], Work()
    right_padded = all(setup.right_padded for setup in setups)
    limits = scoring_limits(first.limits, right_padded)
    work.scored = sum(len(passage.positions) for request in requests for passage in request.passages)
    if first.static:
        for batch in fixed_batches(requests, limits.rows, bucket_length if right_padded else int):
            _feed(work, batch, limits, 0.0)
    else:
        _feed_all(work, forest(requests, limits, right_padded and all(setup.shared for setup in setups)), limits, not right_padded, 0.0)
    return work


def separate_tokens(requests: Iterable[ScoreRequest]) -> int:
    """Tokens that would be fed if each passage were fed by itself."""
    return sum(len(passage_input(passage)) for request in requests for passage in request.passages if len(passage.positions))


def _feed(work: Work, batch: Sequence[Segment], limits: Limits, held: float) -> None:
    work.feed(len(batch), sum(len(segment) - segment.pads for segment in batch), len(batch) * max(map(len, batch)))
    work.hold(len(batch), held + limits.kv(len(batch), max(segment.longest for segment in batch)))


def _feed_all(work: Work, segments: Sequence[Segment], limits: Limits, even: bool, held: float) -> None:
    """As ``Scorer`` feeds segments and all that stands behind them."""
    for batch in segment_batches(segments, limits, even, held):
        _feed(work, batch, limits, held)
        if len(batch) == 1 and batch[0].children:
            _feed_all(work, batch[0].children, limits, even, held + limits.kv(1, len(batch[0].ids)))
        elif batch[0].children:
            for members in child_turns([stem.children for stem in batch])[1]:
                _feed(work, members, limits, held)
