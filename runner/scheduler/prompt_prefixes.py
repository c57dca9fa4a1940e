"""Finds the prefixes that prompts of a window share, and the order in which the rows are prefilled.

    prompts   s s s a a x        shared prefixes   s s s ─┬─ a a ─┬─ x      each is prefilled once; of a row, only the tokens
              s s s a a y z                               │       └─ y z    after its longest shared prefix are prefilled
              s s s b                                     └─ b

The tree is that of ``prefix_ranges``, over all tokens of a prompt but the last. The last is left to the first decode step.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ..core.arrays import Ids
from ..core.requests import Request
from .limits import Limits
from .prefix_tree import CALL_TOKENS, PrefixRange, prefix_ranges, sort_key
from .request_queue import Arrange, SharedPrefix, WindowOrder, by_length, longest_first, share_nothing

OrderKey = tuple[tuple[int, tuple[int, int]], ...]


def arrangement(shares: bool, cached: Sequence[Ids] = ()) -> Arrange:
    """Returns how a queue arranges its windows: with shared prefixes if ``shares``, else longest first."""
    return partial(share_prefixes, cached=cached) if shares else share_nothing


def share_prefixes(requests: Iterable[Request], limits: Limits, cached: Sequence[Ids] = ()) -> WindowOrder:
    """Returns the requests in order, and the shared prefixes that pay within ``limits``. Rows with one shared prefix follow each other.

    Longest first: a shared prefix takes its place by its longest prompt, among the prompts that share nothing. ``cached`` are
    prefixes that need not be computed. A prompt that begins with one shares it, even if no other prompt does.
    """
    rows = [(prefilled_ids(request), request) for request in longest_first(requests)]
    by_ids = _with_cached(rows, cached) if cached else sorted(rows, key=lambda row: sort_key(row[0]))
    lengths = [len(ids) if request is None else request.reach for ids, request in by_ids]
    shared: dict[PrefixRange, SharedPrefix] = {}
    keys: dict[PrefixRange | None, OrderKey] = {None: ()}
    prefixes: dict[tuple[int, int], SharedPrefix] = {}
    order: list[tuple[OrderKey, Request]] = []
    for span in prefix_ranges([ids for ids, _ in by_ids], limits, lengths, CALL_TOKENS):
        own = [request for _, request in by_ids[span.low : span.high] if request is not None]
        if not own:
            continue
        first = own[0] if len(own) == 1 else min(own, key=by_length)
        key = (*keys[span.parent], by_length(first))
        parent = None if span.parent is None else shared[span.parent]
        if span.end is not None:
            shared[span], keys[span] = SharedPrefix(own[0].prompt.ids[: span.end], parent), key
            continue
        order.append((key, own[0]))
        if parent is not None:
            prefixes[own[0].place] = parent
    return [request for _, request in sorted(order, key=lambda keyed: keyed[0])], prefixes


def _with_cached(rows: Sequence[tuple[Ids, Request]], cached: Sequence[Ids]) -> list[tuple[Ids, Request | None]]:
    """Sorts the rows by their ids, and puts each cached prefix before the rows that begin with it. Leaves out unused prefixes."""
    every: list[tuple[Ids, Request | None]] = sorted([*((ids, None) for ids in cached), *rows], key=lambda row: sort_key(row[0]))
    kept: list[tuple[Ids, Request | None]] = []
    for ids, request in reversed(every):
        following = kept[-1][0][: len(ids)] if kept else ids[:0]
        if request is not None or np.array_equal(ids, following):
            kept.append((ids, request))
    return kept[::-1]


def prefilled_ids(request: Request) -> Ids:
    """Returns the tokens of a prompt that are prefilled: all but the last."""
    return request.prompt.ids[:-1]
