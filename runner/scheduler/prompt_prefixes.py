"""What prompts of a window begin with alike, and the order in which they are then prefilled. Pure and deterministic.

    prompts   s s s a a x        stems   s s s ─┬─ a a ─┬─ x      each is prefilled once; rows are fed what stands behind
              s s s a a y z                     │       └─ y z    the last of theirs
              s s s b                           └─ b

The trie is that of ``prefixes``, over all of a prompt's tokens but the last, which is left to the first decode step.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from ..core.requests import Ids, Request
from .limits import Limits
from .prefix_tree import CALL, Prefix, prefixes, sort_key
from .request_queue import Arranged, SharedPrefix, longest_first

Place = tuple[tuple[int, int], ...]


def shared(requests: Iterable[Request], limits: Limits, known: Sequence[Ids] = ()) -> Arranged:
    """The stems that pay within ``limits``, and the requests in an order in which those behind one stem follow each other.

    Longest first: stems by the longest prompt behind them, among the prompts that stand behind none. ``known`` are prefixes that
    need not be computed: where a prompt begins with one, that is a stem as if another prompt did too.
    """
    rows = [(fed_prompt(request), request) for request in longest_first(requests)]
    by_ids = _sorted(rows, known) if known else sorted(rows, key=lambda row: sort_key(row[0]))
    stems: dict[Prefix, SharedPrefix] = {}
    places: dict[Prefix | None, Place] = {None: ()}
    found: dict[int, SharedPrefix] = {}
    order: list[tuple[Place, Request]] = []
    becomes = [len(ids) if request is None else request.reach for ids, request in by_ids]
    for prefix in prefixes([ids for ids, _ in by_ids], limits, becomes, CALL):
        own = [request for _, request in by_ids[prefix.low : prefix.high] if request is not None]
        if not own:
            continue
        place = (*places[prefix.above], min((-len(request.prompt.ids), request.row) for request in own))
        if prefix.end is None:
            order.append((place, own[0]))
            if prefix.above is not None:
                found[own[0].row] = stems[prefix.above]
        else:
            above = None if prefix.above is None else stems[prefix.above]
            stems[prefix], places[prefix] = SharedPrefix(own[0].prompt.ids[: prefix.end], above), place
    return [request for _, request in sorted(order, key=lambda placed: placed[0])], found


def _sorted(rows: Sequence[tuple[Ids, Request]], known: Sequence[Ids]) -> list[tuple[Ids, Request | None]]:
    """The rows by their ids, each prefix of those ``known`` that one begins with in front of it."""
    every: list[tuple[Ids, Request | None]] = sorted([*((ids, None) for ids in known), *rows], key=lambda row: sort_key(row[0]))
    kept: list[tuple[Ids, Request | None]] = []
    for ids, request in reversed(every):
        after = kept[-1][0][: len(ids)] if kept else ids[:0]
        if request is not None or np.array_equal(ids, after):
            kept.append((ids, request))
    return kept[::-1]


def fed_prompt(request: Request) -> Ids:
    """The tokens of a prompt that are prefilled."""
    return request.prompt.ids[:-1]
