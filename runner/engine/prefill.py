"""Prefill: runs prompts into KV caches, a group of rows at once, right-padded, in chunks. Computes the echo on the way.

The echo is the logprobs of a prompt's own tokens. A prompt's last token is left to the first decode step, so logits are computed only
where the echo reads them. With an echo, chunks are cut so that one chunk's logits stay within a stated bound: no [B, T, V] array.

    ids      a b c d i        tokens   a b c d        echo   b c d i       the logits at position t score token t + 1
             e f h                     e f . .               f h

A prefill can be made call by call, and others use the model in between: see ``Resumable``.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.logprobs import Scores, join_scores
from ..caches.image_blocks import uncut
from ..core.requests import Request, Sample
from ..layers.kv_cache import (
    Caches,
    evaluate_caches,
    finish_padding,
    fork_caches,
    join_caches,
    make_caches,
    merge_caches,
    prepare_padding,
    select,
    send_caches,
)
from ..layers.state_scores import no_scores, read_scores
from ..models.device_memory import limit_spare_memory
from ..scheduler.prefill_calls import call_width, prefill_calls
from .prefix_disk_cache import ComputedPrefix
from .setup import Setup

Result = TypeVar("Result")

# Work that is made of calls through the model: it yields before each call and says how many padded tokens the call holds.
ByCalls = Generator[int, None, Result]

LEAST_CHUNK = 8  # tokens of a call that makes all its logits, as the network is not split


@dataclass(slots=True)
class Prefilled:
    """A prefilled group: one cache row and one echo per request, and the samples that have no slot yet."""

    caches: Caches
    requests: list[Request]
    echoes: list[Scores | None]
    waiting: list[tuple[int, Sample]]  # (index of the request, its sample)
    tokens: int
    padded_tokens: int


@dataclass(slots=True, frozen=True)
class _PrefillRow:
    """The tokens ids[start:end] of one row, which go through the model on top of its ``prefix``. ids: [T]. Each scores the next."""

    ids: NDArray[np.int32]
    end: int
    prefix: ComputedPrefix | None = None
    request: Request | None = None

    @property
    def start(self) -> int:
        return 0 if self.prefix is None else self.prefix.tokens

    def __len__(self) -> int:
        return self.end - self.start


class Resumable(Generic[Result]):
    """Work by calls, of which some are made at a time."""

    def __init__(self, work: ByCalls[Result]):
        self._work, self._next = work, 0  # padded tokens of the call that comes next

    def advance(self, tokens: int) -> Result | None:
        """Makes the next call, and more as long as all have at most ``tokens`` padded tokens. Returns the result after the last one."""
        spent = 0
        try:
            while not spent or spent + self._next <= tokens:
                spent += self._next
                self._next = next(self._work)
        except StopIteration as end:
            return end.value
        return None


def all_at_once(work: ByCalls[Result]) -> Result:
    """Makes all calls of ``work``, one after the other; returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def prefill(setup: Setup, requests: list[Request], prefixes: Sequence[ComputedPrefix | None] = ()) -> Prefilled:
    """Runs all but the last token of each prompt through the model, as ``prefill_by_calls``."""
    return all_at_once(prefill_by_calls(setup, requests, prefixes))


def prefill_by_calls(setup: Setup, requests: list[Request], prefixes: Sequence[ComputedPrefix | None] = ()) -> ByCalls[Prefilled]:
    """Runs all but the last token of each prompt through the model. Shorter rows are padded on the right; then pads move to the left.

    Where a call must not be ragged, rows of one length go together, the longest first, and then join: a recurrent state never sees a
    pad. Else a row gets a call of its own where its pads would cost more than that. ``prefixes``: for each request the computed prefix
    that its prompt begins with, or None.
    """
    pairs = zip(requests, prefixes or [None] * len(requests), strict=True)
    rows = [_PrefillRow(request.prompt.ids, len(request.prompt.ids) - 1, prefix, request) for request, prefix in pairs]
    lengths, starts = [len(row) for row in rows], [row.start for row in rows]
    calls = row_calls(setup, lengths, starts)
    if len(calls) == 1:
        return (yield from _prefill_together(setup, rows))
    parts: list[Prefilled] = []
    for call in calls:
        parts += [(yield from _prefill_together(setup, [rows[i] for i in call]))]
    caches = join_caches([part.caches for part in parts])
    _compute(setup, caches)
    requests = [request for part in parts for request in part.requests]
    echoes = [echo for part in parts for echo in part.echoes]
    tokens, padded_tokens = sum(part.tokens for part in parts), sum(part.padded_tokens for part in parts)
    return Prefilled(caches, requests, echoes, _samples(requests), tokens, padded_tokens)


def _prefill_together(setup: Setup, rows: list[_PrefillRow]) -> ByCalls[Prefilled]:
    lengths = [len(row) for row in rows]
    width = call_width(lengths)
    caches = _caches(setup, [row.prefix for row in rows])
    prepare_padding(caches, lengths, width)
    tokens = np.zeros((len(rows), width), np.int32)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = row.ids[row.start : row.end]
    echoes, _ = yield from _run(setup, tokens, rows, caches)
    if min(lengths) < width:
        finish_padding(caches)
        _compute(setup, caches)
    requests = [row.request for row in rows if row.request is not None]
    return Prefilled(caches, requests, echoes, _samples(requests), sum(lengths), tokens.size)


def _samples(requests: list[Request]) -> list[tuple[int, Sample]]:
    return [(i, sample) for i, r in enumerate(requests) for sample in r.work.samples]


def _caches(setup: Setup, prefixes: list[ComputedPrefix | None]) -> Caches:
    """Returns caches of one row per prefix: a copy of the prefix's, or an empty row."""
    distinct = list(dict.fromkeys(prefixes))
    if distinct == [None]:
        return make_caches(setup.model, len(prefixes), setup.features.padded, setup.kv)
    rows = [make_caches(setup.model, 1, padded=False, kv=setup.kv) if prefix is None else prefix.caches for prefix in distinct]
    caches = merge_caches(setup.model, rows)
    select(caches, [distinct.index(prefix) for prefix in prefixes], len(distinct), setup.features.padded)
    _compute(setup, caches)  # a row whose prefix is its whole prompt needs no call that would compute them
    return caches


def compute_prefix(setup: Setup, ids: NDArray[np.int32], parent: ComputedPrefix | None) -> ComputedPrefix:
    """Computes the prefix ``ids`` [T], on top of a copy of ``parent``, a computed prefix of it."""
    return all_at_once(prefix_by_calls(setup, ids, parent))


def prefix_by_calls(setup: Setup, ids: NDArray[np.int32], parent: ComputedPrefix | None) -> ByCalls[ComputedPrefix]:
    """Computes the prefix ``ids`` [T], on top of a copy of ``parent``, a computed prefix of it."""
    row = _PrefillRow(ids, len(ids), parent)
    caches = make_caches(setup.model, 1, padded=False, kv=setup.kv) if parent is None else fork_caches(parent.caches, [0], 1, padded=False)
    (echo,), last_state = yield from _run(setup, ids[None, row.start :], [row], caches)
    return ComputedPrefix(caches, len(ids), echo, last_state)


def _run(
    setup: Setup, tokens: NDArray[np.int32], rows: list[_PrefillRow], caches: Caches
) -> ByCalls[tuple[list[Scores | None], mx.array | None]]:
    """Runs ``tokens`` [B, T] through the model, chunk by chunk.

    Returns each row's echo, its prefix's included, and the first row's last hidden state [1, H]. Without an echo both are None.
    """
    echo, last_state = setup.wanted.echo, None
    echoes = _prefix_echoes(setup, rows) if echo else []
    at, sent, width = 0, mx.zeros(0), tokens.shape[1]
    while at < width:
        n = uncut(setup.model, tokens[:, at:], call_tokens(setup, len(rows), width - at))
        yield n * len(rows)
        mx.eval(sent)  # one call at a time: its arrays are large
        columns, lengths = tokens[:, at : at + n], [len(row) - at for row in rows]
        if echo:
            states = setup.network(columns, caches, lengths=lengths, read="states")
            _score_call(setup, states, at, rows, echoes)
            last_state = states[0][mx.array([n - 1])]  # a copy: a slice would keep all of them
            mx.eval(last_state)
        else:
            setup.network(columns, caches, lengths=lengths, read="nothing")
        sent = _compute(setup, caches)
        limit_spare_memory()
        at += n
    return [join_scores(pieces) for pieces in echoes] if echo else [None] * len(rows), last_state


def _compute(setup: Setup, caches: Caches) -> mx.array:
    """Computes the caches; where decoding runs ahead, only sends that to the device. Returns an array to wait for.

    The device then has work while the host builds the next decode step.
    """
    if setup.ahead:
        return send_caches(caches)
    evaluate_caches(caches)
    return mx.zeros(0)


def _prefix_echoes(setup: Setup, rows: list[_PrefillRow]) -> list[list[Scores]]:
    """Returns what each row's prefix says: the scores of its own tokens, and that of the first token after it."""
    echoes = [[no_scores(setup.wanted)] if row.prefix is None or row.prefix.echo is None else [row.prefix.echo] for row in rows]
    last = [(i, row.prefix.last) for i, row in enumerate(rows) if row.prefix is not None and row.prefix.last is not None]
    if last:
        states = mx.concatenate([state for _, state in last])
        targets = np.array([rows[i].ids[rows[i].start] for i, _ in last], np.int32)
        scores, _ = read_scores([setup.network], [states], np.arange(len(last)), targets, setup.logit_rows, setup.wanted)
        for at, (i, _) in enumerate(last):
            echoes[i].append(scores[at : at + 1])
    return echoes


def row_calls(setup: Setup, lengths: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    """Returns the rows of each call that prefills rows of these ``lengths`` behind their ``starts``: see ``prefill_calls``."""
    features, call_tokens = setup.features, setup.limits.call_tokens
    return prefill_calls(lengths, starts, padded=features.padded, ragged=features.ragged, static=setup.static, call_tokens=call_tokens)


def call_widths(setup: Setup, rows: int, width: int) -> Iterator[int]:
    """Yields the tokens a row of each call that prefills ``rows`` rows of ``width`` tokens, as far as no picture moves its end."""
    while width > 0:
        n = call_tokens(setup, rows, width)
        yield n
        width -= n


def call_tokens(setup: Setup, rows: int, left: int) -> int:
    """Returns the tokens a row in the next call of ``rows`` rows with ``left`` tokens to go. It never leaves a single token over.

    mlx-lm's rotating caches take a call of one token for a decode step.
    """
    if not setup.features.chunked:
        return left
    n = setup.limits.tokens // rows
    if setup.wanted.echo and setup.head is None:
        n = min(n, max(LEAST_CHUNK, setup.logit_bytes // (4 * rows * setup.vocabulary)))
    n = max(n, 2)
    return left if left <= n + 1 else n


def _score_call(setup: Setup, states: mx.array, at: int, rows: list[_PrefillRow], echoes: list[list[Scores]]) -> None:
    """Appends to ``echoes`` the scores of the tokens that one call's ``states`` [B, N, H] predict; ``at``: its first column."""
    b, n, h = states.shape
    counts = [max(0, min(len(row.ids) - 1 - row.start - at, n)) for row in rows]
    if not any(counts):
        return
    index = np.concatenate([i * n + np.arange(c) for i, c in enumerate(counts)])
    targets = np.concatenate([row.ids[row.start + at + 1 : row.start + at + 1 + c] for row, c in zip(rows, counts, strict=True)])
    scores, _ = read_scores([setup.network], [states.reshape(b * n, h)], index, targets, setup.logit_rows, setup.wanted)
    end = 0
    for pieces, count in zip(echoes, counts, strict=True):
        pieces.append(scores[end : end + count])
        end += count
