"""Prompts into caches, and the echo: logprobs of a prompt's own tokens. A group of rows at once, right-padded, in chunks.

A prompt's last token is left to the first decode step, so logits are computed only where the echo reads them. Where it
does, chunks are cut so that one chunk's logits stay within a stated bound: no [B, T, V] array.

    ids      a b c d i        tokens   a b c d        echo   b c d i       what position t's logits say of token t + 1
             e f h                     e f . .               f h
"""

import math
import sys
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..kernels.logprobs import Scores, join, score
from ..kernels.tempered import tempered
from .adapters import Adapters
from .cache import Caches, announce, announce_call, evaluate, fresh, joined, settle
from .head import Head, Reader, Whole, read
from .planner import Limits
from .records import Request, Sample

LEAST_CHUNK = 8  # tokens of a call whose logits are not to be had apart
LEAST_ROWS = 96  # of one product with the head: at V = 152,000 half as many take half as long again a token


@dataclass(slots=True, frozen=True)
class Wanted:
    """Which figures are computed: ``logprobs.prompt``, ``logprobs.top`` and ``logprobs.stats`` of the config.

    ``greedy``: of a scored token, whether it is the most likely one. Of a generated token: ``tempered``, its logprob under
    logits / temperature, ``kept``, the ids that could be drawn, ``reference``, its logprobs under another policy or model.
    ``temperature``: of a scored token, its logprob at it too.
    """

    echo: bool = False
    top: int = 0
    stats: bool = False
    greedy: bool = False
    tempered: bool = False
    kept: bool = False
    reference: bool = False
    temperature: float | None = None

    def scores(self, logits: mx.array, targets: NDArray[np.int32]) -> Scores:
        """The figures of ``targets`` [N] under ``logits`` [N, V]."""
        found = score(logits, targets, self.top, self.stats, self.greedy)
        if self.temperature is None:
            return found
        if self.temperature in (0.0, 1.0):
            return replace(found, tempered=found.logprobs)
        return replace(found, tempered=tempered(logits, targets, np.full(len(targets), self.temperature, np.float32)))

    @property
    def nothing(self) -> Scores:
        """The figures of no tokens."""
        ints, floats, k = np.zeros(0, np.int32), np.zeros(0, np.float32), self.top
        tops = (ints.reshape(0, k), floats.reshape(0, k)) if k else (None, None)
        stats, greedy = (ints, floats) if self.stats else (None, None), ints.astype(np.bool_) if self.greedy else None
        return Scores(floats, *tops, *stats, greedy, None if self.temperature is None else floats)


@dataclass(slots=True, frozen=True)
class Setup:
    """A model and how it is run. ``padded``: rows of unlike length share a batch (the probe allows it); ``ragged``: a prefill too.

    ``static``: a batch keeps its rows until all are done (deterministic mode). ``logit_bytes`` bounds the float32 logits that
    the echo and the scorer read at once. What the probes found for them: ``head`` is the network split in two (None: it
    cannot be), ``right_padded``: rows of unlike length share a batch of plain caches, pads behind them; ``shared``: rows
    can be fed on top of copies of another row's caches, ``chunked``: a row's tokens may go through in several calls.
    ``adapters`` puts other adapters and weights on the model.
    """

    model: Any
    vocabulary: int
    limits: Limits
    wanted: Wanted
    padded: bool
    static: bool = False
    logit_bytes: int = 32 << 20
    head: Head | None = None
    right_padded: bool = False
    shared: bool = False
    chunked: bool = True
    ragged: bool = True
    adapters: Adapters | None = None

    @property
    def reader(self) -> Reader:
        """What makes logits in two steps."""
        return self.head or Whole(self.model)

    @property
    def logit_rows(self) -> int:
        """Positions whose logits may stand at once."""
        return max(LEAST_ROWS, self.logit_bytes // (4 * self.vocabulary))

    @property
    def joins(self) -> bool:
        """True when a prefilled group can join a batch that decodes."""
        return self.padded and not self.static

    @property
    def group_limits(self) -> Limits:
        """Limits of a group: one that nothing can join is as large as its batch, whatever its tokens.

        A static batch is made by rows alone: its rows must not depend on the memory that this machine has.
        """
        limits = self.limits if self.joins else replace(self.limits, tokens=sys.maxsize)
        return replace(limits, kv_bytes=math.inf) if self.static else limits


@dataclass(slots=True)
class Prefilled:
    """A prefilled group: one cache row and one echo a request, and the samples that have not been admitted yet."""

    caches: Caches
    requests: list[Request]
    echoes: list[Scores | None]
    waiting: list[tuple[int, Sample]]  # (index of the request, its sample)
    tokens: int
    padded_tokens: int


def prefill(setup: Setup, requests: list[Request]) -> Prefilled:
    """Runs all but the last token of each prompt through the model; shorter rows are padded on the right, then rolled.

    Where a prefill must not be ragged, rows of one length go through together, the longest first, and then join: a recurrent
    state that would take in a pad is never shown one.
    """
    if setup.ragged or not setup.padded:
        return _together(setup, requests)
    longest_first = sorted(requests, key=_length, reverse=True)
    parts = [_together(setup, list(alike)) for _, alike in groupby(longest_first, _length)]
    if len(parts) == 1:
        return parts[0]
    caches = joined([part.caches for part in parts])
    evaluate(caches)
    waiting = [(i, sample) for i, r in enumerate(longest_first) for sample in r.work.samples]
    echoes = [echo for part in parts for echo in part.echoes]
    return Prefilled(caches, longest_first, echoes, waiting, sum(part.tokens for part in parts), sum(part.padded_tokens for part in parts))


def _length(request: Request) -> int:
    return len(request.prompt.ids)


def _together(setup: Setup, requests: list[Request]) -> Prefilled:
    ids = [r.prompt.ids for r in requests]
    lengths = [len(x) - 1 for x in ids]
    width = max(lengths)
    if width == 1 and min(lengths) == 0:
        width = 2  # mlx-lm's rotating caches take a call of one token for a decode step, which must not be padded
    caches = fresh(setup.model, len(ids), setup.padded)
    announce(caches, lengths, width)
    tokens = np.zeros((len(ids), width), np.int32)
    for row, x, n in zip(tokens, ids, lengths, strict=True):
        row[:n] = x[:-1]
    echoes = _forward(setup, tokens, ids, caches)
    if min(lengths) < width:
        settle(caches)
        evaluate(caches)
    waiting = [(i, sample) for i, r in enumerate(requests) for sample in r.work.samples]
    return Prefilled(caches, requests, echoes, waiting, sum(lengths), tokens.size)


def _forward(setup: Setup, tokens: NDArray[np.int32], ids: list[NDArray[np.int32]], caches: Caches) -> list[Scores | None]:
    """Runs ``tokens`` [B, T] through the model chunk by chunk; each row's echo scores [len(ids) - 1], if wanted."""
    rows, width = tokens.shape
    parts = [[setup.wanted.nothing] for _ in ids]
    at = 0
    while at < width:
        n = chunk(setup, rows, width - at)
        announce_call(caches, [len(x) - 1 - at for x in ids], n)
        states = setup.reader.states(mx.array(tokens[:, at : at + n]), caches)
        if setup.wanted.echo:
            _echo(setup, states, at, ids, parts)
        evaluate(caches)
        mx.clear_cache()
        at += n
    return [join(p) if setup.wanted.echo else None for p in parts]


def chunk(setup: Setup, rows: int, left: int) -> int:
    """Tokens a row in the next call of ``rows`` rows that have ``left`` to go; never a last one alone (see ``prefill``)."""
    if not setup.chunked:
        return left
    n = setup.limits.tokens // rows
    if setup.wanted.echo and setup.head is None:
        n = min(n, max(LEAST_CHUNK, setup.logit_bytes // (4 * rows * setup.vocabulary)))
    n = max(n, 2)
    return left if left <= n + 1 else n


def _echo(setup: Setup, states: mx.array, at: int, ids: list[NDArray[np.int32]], parts: list[list[Scores]]) -> None:
    """Appends to ``parts`` the scores of the tokens that ``states`` [B, N, H], of positions at … at + N - 1, predict."""
    b, n, h = states.shape
    counts = [max(0, min(len(x) - 1 - at, n)) for x in ids]
    if not any(counts):
        return
    index = np.concatenate([i * n + np.arange(c) for i, c in enumerate(counts)])
    targets = np.concatenate([x[at + 1 : at + 1 + c] for x, c in zip(ids, counts, strict=True)])
    scores, _ = read([setup.reader], [states.reshape(b * n, h)], index, targets, setup.logit_rows, setup.wanted.scores)
    end = 0
    for part, count in zip(parts, counts, strict=True):
        part.append(scores[end : end + count])
        end += count
