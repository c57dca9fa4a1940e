"""Counts what a run will ask of the model, before there is one: calls, tokens, padding, decode steps, and KV bytes at the peak.

It follows the engines through the scheduler that they use. Completions have given lengths in place of generated
tokens. Knows no model, no time and no text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from typing import Self

from ..core.requests import PoolRequest, Request, Sample, ScoreRequest
from ..engine.prefill import ByCalls, Resumable, call_widths, row_calls
from ..engine.setup import Setup
from ..pool_engine.pooler import pooling_batches
from ..scheduler.admission import joining_rows, may_join
from ..scheduler.limits import Limits, Load
from ..scheduler.pool_batches import owned_inputs
from ..scheduler.prefill_calls import call_width
from ..scheduler.prefix_tree import Segment, bucket_length, forest, passage_input
from ..scheduler.prompt_prefixes import arrangement
from ..scheduler.request_queue import Arrange, RequestQueue, SharedPrefix
from ..scheduler.score_batches import child_turns, fixed_batches, scoring_limits, segment_batches

Waiting = list[tuple[Request, Sample]]  # samples that are prefilled, without a slot

CompletionLength = Callable[[Request, Sample], int]

PEAKS = ("rows", "kv_bytes")


@dataclass(slots=True)
class Work:
    """Sums over a run, named as in ``engine.Progress`` where that counts the same. ``calls`` are batches: prefills, or of scorer or pooler.

    ``rows`` of a batch and ``kv_bytes`` of its KV caches, or of a pooling model's arrays, are peaks.
    """

    calls: int = 0
    prefilled: int = 0
    padded: int = 0
    steps: int = 0
    generated: int = 0
    slot_steps: int = 0
    scored: int = 0
    rows: int = 0
    kv_bytes: float = 0.0

    @property
    def padding_waste(self) -> float:
        """The share of padding in the tokens computed."""
        return 1 - self.prefilled / self.padded if self.padded else 0.0

    def count_batch(self, rows: int, tokens: int, padded: int) -> None:
        """Counts one batch of ``rows`` rows with ``tokens`` tokens, or ``padded`` with padding."""
        self.calls += 1
        self.prefilled += tokens
        self.padded += padded
        self.rows = max(self.rows, rows)

    def raise_peaks(self, rows: int, kv_bytes: float) -> None:
        """Raises the peaks to a batch of ``rows`` rows and ``kv_bytes`` of KV caches, where that is more."""
        self.rows, self.kv_bytes = max(self.rows, rows), max(self.kv_bytes, kv_bytes)

    def add(self, other: "Work") -> None:
        """Adds work that is done after this. Peaks do not add up: the higher one stays."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(mine, theirs) if each.name in PEAKS else mine + theirs)

    def times(self, factor: float) -> Self:
        """Returns the work of ``factor`` times the rows; peaks stay."""
        sums = [each.name for each in fields(self) if each.name not in PEAKS]
        return replace(self, **{name: round(factor * getattr(self, name)) for name in sums})


def decoding_work(windows: Iterable[list[Request]], setup: Setup, length: CompletionLength, arrange: Arrange | None = None) -> Work:
    """Returns the engine's work for all ``windows`` if each completion has as many tokens as ``length`` says (at least one).

    ``arrange`` repeats the arrangement of windows whose requests have no ids any more.
    """
    batch, rest = _DecodingBatch(setup, length), iter(windows)
    queue = RequestQueue(lambda wait: next(rest, None), arrange or arrangement(setup.shares_prompts))
    while True:
        admitted = batch.admit(queue)
        if batch.ends:
            batch.advance(1 if admitted else None)
        elif batch.entering is None:
            return batch.work


@dataclass(slots=True)
class _DecodingBatch:
    """The batch that decodes. ``ends`` holds each row's last step, and the length that the row may become."""

    setup: Setup
    length: CompletionLength
    work: Work = field(default_factory=Work)
    ends: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # a heap
    entering: Resumable[Waiting] | None = None  # the prefill of a group, under way
    parked: Waiting = field(default_factory=list[tuple[Request, Sample]])
    prefixes: set[SharedPrefix] = field(default_factory=set[SharedPrefix])  # whose KV caches are kept

    @property
    def load(self) -> Load:
        return Load(len(self.ends), max((reach for _, reach in self.ends), default=0))

    def admit(self, queue: RequestQueue) -> bool:
        """Prefills and fills free slots as the engine does once a turn. Returns True when a prefill is under way or rows entered."""
        limits, load = self.setup.limits, self.load
        if self.entering is None:
            if not may_join(limits, load.rows, self.setup.joins):
                return False
            if not self.parked:
                requests = queue.take(self.setup.group_limits, load)
                if not requests:
                    return False
                setup = self.setup.beside_decoding if load.rows else self.setup
                self.entering = Resumable(self._prefill(setup, requests, queue))
        if self.entering is not None:
            done = self.entering.advance(self.setup.prefill_tokens)
            if done is None:
                return True
            self.parked, self.entering, self.prefixes = done, None, set(queue.kept_prefixes)
        longest = max(load.longest, *(request.reach for request, _ in self.parked))
        free = joining_rows(queue.limits_left(self.setup.group_limits), load, [longest])
        entering, self.parked = self.parked[:free], self.parked[free:]
        for request, sample in entering:
            heappush(self.ends, (self.work.steps + max(1, self.length(request, sample)), request.reach))
        held = sum(limits.kv(1, len(prefix.ids)) for prefix in self.prefixes)
        self.work.raise_peaks(len(self.ends), limits.kv(len(self.ends), longest) + held)
        return bool(entering)

    def _prefill(self, setup: Setup, requests: Sequence[Request], queue: RequestQueue) -> ByCalls[Waiting]:
        """Counts a prefill; yields the padded tokens of each of its calls, as the engine does."""
        prefixes = [queue.prefix_of(request) for request in requests]
        chains = [one for prefix in prefixes if prefix for one in reversed([*prefix.chain])]
        new = [one for one in dict.fromkeys(chains) if one not in self.prefixes]
        for prefix in new:
            yield from call_widths(setup, 1, prefix.own_tokens)
        starts = [len(prefix.ids) if prefix else 0 for prefix in prefixes]
        lengths = [len(request.prompt.ids) - 1 - start for request, start in zip(requests, starts, strict=True)]
        padded = 0
        for call in row_calls(setup, lengths, starts):
            width = call_width([lengths[row] for row in call])
            padded += len(call) * width
            for tokens in call_widths(setup, len(call), width):
                yield len(call) * tokens
        new_tokens = sum(prefix.own_tokens for prefix in new)
        self.work.count_batch(len(requests), new_tokens + sum(lengths), new_tokens + padded)
        return [(request, sample) for request in requests for sample in request.work.samples]

    def advance(self, steps: int | None) -> None:
        """Decodes ``steps`` steps, or until the first row leaves. The rows of a static batch leave together."""
        static, now = self.setup.static, self.work.steps
        last = max(end for end, _ in self.ends) if static else self.ends[0][0]
        until = last if static or steps is None else min(last, now + steps)
        self.work.generated += sum(min(end, until) - now for end, _ in self.ends)
        self.work.slot_steps += (until - now) * self.setup.limits.rows
        self.work.steps = until
        while self.ends and self.ends[0][0] <= until:
            heappop(self.ends)


def scoring_work(requests: Sequence[ScoreRequest], setups: Sequence[Setup]) -> Work:
    """Returns the scorer's work for one window of ``requests``, with one model or with a reference beside it."""
    first, work = setups[0], Work()
    right_padded = all(setup.features.right_padded for setup in setups)
    limits = scoring_limits(first.limits, right_padded)
    work.scored = sum(len(passage.positions) for request in requests for passage in request.passages)
    if first.static:
        rows = min(setup.fixed_rows for setup in setups)
        for batch in fixed_batches(requests, rows, bucket_length if right_padded else int):
            _count_segments(work, batch, limits, 0.0)
    else:
        shared = right_padded and all(setup.features.shared_passages for setup in setups)
        whole_pictures = any(setup.whole_pictures for setup in setups)
        _count_tree(work, forest(requests, limits, shared), limits, not right_padded, whole_pictures)
    return work


def pooling_work(requests: Sequence[PoolRequest], setup: Setup) -> Work:
    """Returns the pooler's work for one window of ``requests``. ``kv_bytes`` are those of its arrays."""
    work = Work()
    for batch in pooling_batches(setup, setup.limits, owned_inputs(requests, shared=not setup.static)):
        work.count_batch(len(batch.inputs), batch.tokens, batch.rows * batch.width)
        work.raise_peaks(len(batch.inputs), setup.limits.kv(batch.rows, batch.width))
    return work


def separate_tokens(requests: Iterable[ScoreRequest]) -> int:
    """Counts the tokens that would be computed if passages shared no prefixes."""
    return sum(len(passage_input(passage)) for request in requests for passage in request.passages if len(passage.positions))


def _count_segments(work: Work, batch: Sequence[Segment], limits: Limits, held: float) -> None:
    work.count_batch(len(batch), sum(len(segment) - segment.pads for segment in batch), len(batch) * max(map(len, batch)))
    work.raise_peaks(len(batch), held + limits.kv(len(batch), max(segment.longest for segment in batch)))


def _count_tree(
    work: Work, segments: Sequence[Segment], limits: Limits, equal_lengths: bool, whole_pictures: bool, held: float = 0.0
) -> None:
    """Counts segments and their children in the scorer's order. ``held``: bytes of the KV caches of their parents."""
    for batch in segment_batches(segments, limits, equal_lengths, held, whole_pictures=whole_pictures):
        _count_segments(work, batch, limits, held)
        if len(batch) == 1 and batch[0].children:
            below = held + limits.kv(1, len(batch[0].ids))
            _count_tree(work, batch[0].children, limits, equal_lengths, whole_pictures, below)
        elif batch[0].children:
            for turn in child_turns([parent.children for parent in batch])[1]:
                _count_segments(work, turn, limits, held)
