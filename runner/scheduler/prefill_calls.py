"""Splits the rows of a prefill into calls of the model, and gives each call its width.

rows, longest first   a a a a a a a a        one call: b's pads cost less than a call
                      b b b b b b b .
                      c c                    a call of its own
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from .prefix_tree import CALL_TOKENS


def prefill_calls(
    lengths: Sequence[int], starts: Sequence[int], *, padded: bool, ragged: bool, static: bool, call_tokens: int = CALL_TOKENS
) -> list[list[int]]:
    """Returns the rows of each call, as indices into ``lengths`` [B]: the tokens that each row still needs after its first ``starts`` [B].

    Without ``padded``, or in a ``static`` batch (deterministic mode), one call takes all rows in their order. With ``ragged`` a call
    takes rows of similar length, else rows of equal length and start. Several calls come longest first. call_tokens: what a call's fixed
    cost is in tokens.
    """
    rows = list(range(len(lengths)))
    if not padded or (ragged and static):  # a static batch has one shape, whatever its rows contain
        return [rows]
    if ragged:
        longest_first = sorted(rows, key=lambda row: -lengths[row])
        calls = [longest_first[part] for part in similar_lengths([lengths[row] for row in longest_first], call_tokens)]
    else:
        shapes = [(-lengths[row], starts[row]) for row in rows]
        calls = [list(equal) for _, equal in groupby(sorted(rows, key=shapes.__getitem__), shapes.__getitem__)]
    return calls if len(calls) > 1 else [rows]


def call_width(lengths: Sequence[int]) -> int:
    """Returns the tokens a row that a call of rows of these ``lengths`` is padded to."""
    width = max(lengths)
    # mlx-lm's rotating caches take a call of one token for a decode step, which must not be padded.
    return 2 if width == 1 and min(lengths) == 0 else width


def similar_lengths(lengths: Sequence[int], call_tokens: int = CALL_TOKENS) -> Iterator[slice]:
    """Splits rows, longest first, into calls of similar ``lengths``, so that padding in a call never costs more than one extra call."""
    begin = pads = 0
    for at, length in enumerate(lengths):
        more = lengths[begin] - length
        if pads + more > call_tokens:
            yield slice(begin, at)
            begin, pads, more = at, 0, 0
        pads += more
    yield slice(begin, len(lengths))
