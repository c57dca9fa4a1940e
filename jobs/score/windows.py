"""Cuts a document longer than the context into windows, so that each token is scored once, after enough context.

Works on counts: a document is its number of token ids. The first id (the prefix token, or without one the text's own first token)
is context alone. Knows no text and no model.

    ids        p 0 1 2 3 4 5 6 7 8 9     context 4, rolling       fed       scored
    window 1   . S S S S                                          p 0 1 2   0 1 2 3
    window 2           . S S S S                                  3 4 5 6   4 5 6 7
    window 3               . . . S S                              5 6 7 8   8 9
"""

from collections.abc import Iterator
from dataclasses import dataclass

# Families (``model_type``) trained with BOS before every sequence, and useless without it: bos_every_window: auto is true for them.
BOS_EVERY_WINDOW = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"),
        *("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "recurrent_gemma"),
    }
)


@dataclass(slots=True, frozen=True)
class Window:
    """The ids from ``start`` up to ``end``; those from ``scored`` on are scored, and the last one is never fed.

    A BOS before every window goes before each that does not start at 0.
    """

    start: int
    scored: int
    end: int


def rolling(ids: int, context: int, bos: int = 0) -> Iterator[Window]:
    """Yields windows as lm-eval's ``get_rolling_token_windows(context_len=1)``: one token of overlap, the last with full context.

    ids: of the document. context: ids fed in one window. bos: ids put before each later window, 0 or 1; they count as fed.
    """
    own_ids = context - bos
    scored = min(1 + context, ids)
    if ids > 1:
        yield Window(0, 1, scored)
    while scored < ids:
        end = min(scored + max(1, own_ids), ids)
        yield Window(end - 1 - own_ids, scored, end)
        scored = end


def strided(ids: int, context: int, stride: int, bos: int = 0) -> Iterator[Window]:
    """Yields windows as in transformers' guide to perplexity: ``context`` ids with the targets, each starting ``stride`` ids later.

    ids, context, bos: as for ``rolling``; BOS takes the place of a window's first id. stride: at most ``context``. Where windows
    share no id (stride = context), the id before is fed too: the guide does not score a window's first token.
    """
    scored, start = 1, 0
    while scored < ids:
        end = min(start + context, ids)
        if end > scored:
            yield Window(0 if start == 0 else min(start + bos, scored - 1 + bos), scored, end)
            scored = end
        start += stride
