"""Prompts into caches, and the echo: logprobs of a prompt's own tokens. A group of rows at once, right-padded, in chunks.

A prompt's last token is left to the first decode step, so logits are computed only where the echo reads them. Where it
does, chunks are cut so that one chunk's logits stay within a stated bound: no [B, T, V] array.

    ids      a b c d i        tokens   a b c d        echo   b c d i       what position t's logits say of token t + 1
             e f h                     e f . .               f h
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.logprobs import Scores, join_scores
from ..core.requests import Request, Sample
from ..layers.kv_cache import Caches, announce, evaluate_caches, forked, fresh, joined, merged, select, settle
from ..layers.state_scores import read_scores
from ..scheduler.prefill_calls import call_width, prefill_calls
from .prefix_disk_cache import Base
from .setup import Setup

LEAST_CHUNK = 8  # tokens of a call whose logits are not to be had apart


@dataclass(slots=True)
class Prefilled:
    """A prefilled group: one cache row and one echo a request, and the samples that have not been admitted yet."""

    caches: Caches
    requests: list[Request]
    echoes: list[Scores | None]
    waiting: list[tuple[int, Sample]]  # (index of the request, its sample)
    tokens: int
    padded_tokens: int


@dataclass(slots=True, frozen=True)
class _Feed:
    """Tokens ids[start:end] of a row [T] behind those of its ``base``; each predicts the one behind it, as far as there is one."""

    ids: NDArray[np.int32]
    end: int
    base: Base | None = None
    request: Request | None = None

    @property
    def start(self) -> int:
        return 0 if self.base is None else self.base.tokens

    def __len__(self) -> int:
        return self.end - self.start


def prefill(setup: Setup, requests: list[Request], bases: Sequence[Base | None] = ()) -> Prefilled:
    """Runs all but the last token of each prompt through the model; shorter rows are padded on the right, then rolled.

    Where a prefill must not be ragged, rows of one length go through together, the longest first, and then join: a recurrent
    state that would take in a pad is never shown one. Else rows whose pads would take longer than a call of their own get one.
    ``bases``: of each row the one that holds its first tokens, if there is any.
    """
    rows = [_Feed(r.prompt.ids, len(r.prompt.ids) - 1, base, r) for r, base in zip(requests, bases or [None] * len(requests), strict=True)]
    lengths, starts = [len(row) for row in rows], [row.start for row in rows]
    calls = prefill_calls(lengths, starts, padded=setup.padded, ragged=setup.ragged, static=setup.static)
    if len(calls) == 1:
        return _together(setup, rows)
    parts = [_together(setup, [rows[i] for i in call]) for call in calls]
    caches = joined([part.caches for part in parts])
    evaluate_caches(caches)
    requests = [request for part in parts for request in part.requests]
    echoes = [echo for part in parts for echo in part.echoes]
    return Prefilled(
        caches, requests, echoes, _waiting(requests), sum(part.tokens for part in parts), sum(part.padded_tokens for part in parts)
    )


def _together(setup: Setup, rows: list[_Feed]) -> Prefilled:
    lengths = [len(row) for row in rows]
    width = call_width(lengths)
    caches = _on_top(setup, [row.base for row in rows])
    announce(caches, lengths, width)
    tokens = np.zeros((len(rows), width), np.int32)
    for line, row in zip(tokens, rows, strict=True):
        line[: len(row)] = row.ids[row.start : row.end]
    echoes, _ = _forward(setup, tokens, rows, caches)
    if min(lengths) < width:
        settle(caches)
        evaluate_caches(caches)
    requests = [row.request for row in rows if row.request is not None]
    return Prefilled(caches, requests, echoes, _waiting(requests), sum(lengths), tokens.size)


def _waiting(requests: list[Request]) -> list[tuple[int, Sample]]:
    return [(i, sample) for i, r in enumerate(requests) for sample in r.work.samples]


def _on_top(setup: Setup, bases: list[Base | None]) -> Caches:
    """Caches for a row a base: copies of it, or empty."""
    different = list(dict.fromkeys(bases))
    if different == [None]:
        return fresh(setup.model, len(bases), setup.padded)
    caches = merged(setup.model, [fresh(setup.model, 1, padded=False) if base is None else base.caches for base in different])
    select(caches, [different.index(base) for base in bases], len(different), setup.padded)
    evaluate_caches(caches)  # where no token follows, nothing else does
    return caches


def grown(setup: Setup, ids: NDArray[np.int32], above: Base | None) -> Base:
    """The base that holds all of ``ids`` [T], on top of a copy of one that holds the first of them."""
    row = _Feed(ids, len(ids), above)
    caches = fresh(setup.model, 1, padded=False) if above is None else forked(above.caches, [0], 1, padded=False)
    (echo,), last = _forward(setup, ids[None, row.start :], [row], caches)
    return Base(caches, len(ids), echo, last)


def _forward(setup: Setup, tokens: NDArray[np.int32], feeds: list[_Feed], caches: Caches) -> tuple[list[Scores | None], mx.array | None]:
    """Runs ``tokens`` [B, T] through the model chunk by chunk: each row's echo, with its base's, and the first row's last state [1, H].

    Both are None where no echo is wanted.
    """
    rows, width = tokens.shape
    echo, last = setup.wanted.echo, None
    parts = _from_bases(setup, feeds) if echo else []
    at = 0
    while at < width:
        n = chunk(setup, rows, width - at)
        part, lengths = mx.array(tokens[:, at : at + n]), [len(row) - at for row in feeds]
        if not echo:
            setup.network(part, caches, lengths=lengths, read="nothing")
        else:
            states = setup.network(part, caches, lengths=lengths, read="states")
            _echo(setup, states, at, feeds, parts)
            last = states[0][mx.array([n - 1])]  # a copy: a slice would keep all of them
            mx.eval(last)
        evaluate_caches(caches)
        mx.clear_cache()
        at += n
    return [join_scores(part) for part in parts] if echo else [None] * rows, last


def _from_bases(setup: Setup, feeds: list[_Feed]) -> list[list[Scores]]:
    """What bases say of each row: the scores of their own tokens, and that of the token behind them."""
    parts = [[setup.wanted.nothing] if row.base is None or row.base.echo is None else [row.base.echo] for row in feeds]
    last = [(i, row.base.last) for i, row in enumerate(feeds) if row.base is not None and row.base.last is not None]
    if last:
        states = mx.concatenate([state for _, state in last])
        targets = np.array([feeds[i].ids[feeds[i].start] for i, _ in last], np.int32)
        scores, _ = read_scores([setup.network], [states], np.arange(len(last)), targets, setup.logit_rows, setup.wanted)
        for at, (i, _) in enumerate(last):
            parts[i].append(scores[at : at + 1])
    return parts


def chunk(setup: Setup, rows: int, left: int) -> int:
    """Tokens a row in the next call of ``rows`` rows that have ``left`` to go; never a last one alone (see ``prefill``)."""
    if not setup.chunked:
        return left
    n = setup.limits.tokens // rows
    if setup.wanted.echo and setup.head is None:
        n = min(n, max(LEAST_CHUNK, setup.logit_bytes // (4 * rows * setup.vocabulary)))
    n = max(n, 2)
    return left if left <= n + 1 else n


def _echo(setup: Setup, states: mx.array, at: int, feeds: list[_Feed], parts: list[list[Scores]]) -> None:
    """Appends to ``parts`` the scores of the tokens that ``states`` [B, N, H], of the positions from ``at`` on of what is fed, predict."""
    b, n, h = states.shape
    counts = [max(0, min(len(row.ids) - 1 - row.start - at, n)) for row in feeds]
    if not any(counts):
        return
    index = np.concatenate([i * n + np.arange(c) for i, c in enumerate(counts)])
    targets = np.concatenate([row.ids[row.start + at + 1 : row.start + at + 1 + c] for row, c in zip(feeds, counts, strict=True)])
    scores, _ = read_scores([setup.network], [states.reshape(b * n, h)], index, targets, setup.logit_rows, setup.wanted)
    end = 0
    for part, count in zip(parts, counts, strict=True):
        part.append(scores[end : end + count])
        end += count
