"""How a document longer than the context is cut: windows in which each token is scored once, behind as many as are promised.

Counts only: a document is its number of token ids, of which the first (the prefix token, or where there is none the text's own
first token) is context alone. Knows no text and no model.

    ids        p 0 1 2 3 4 5 6 7 8 9     context 4, rolling       fed       scored
    window 1   . S S S S                                          p 0 1 2   0 1 2 3
    window 2           . S S S S                                  3 4 5 6   4 5 6 7
    window 3               . . . S S                              5 6 7 8   8 9
"""

from collections.abc import Iterator
from dataclasses import dataclass

# Trained with BOS before every sequence, and lost without it: the families (``model_type``) for which bos_every_window: auto is true.
BOS_EVERY_WINDOW = frozenset(
    {
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"),
        *("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "recurrent_gemma"),
    }
)


@dataclass(slots=True, frozen=True)
class Window:
    """The ids from ``start`` up to ``end``, of which those from ``scored`` on are scored; the last one is never fed.

    Where BOS stands before every window, it stands before each that does not start at 0.
    """

    start: int
    scored: int
    end: int


def rolling(ids: int, context: int, bos: int = 0) -> Iterator[Window]:
    """Windows as lm-eval's ``get_rolling_token_windows(context_len=1)``: one token of overlap, the last one with full context.

    ids: of the document. context: ids fed in one window. bos: ids put before each later window, 0 or 1; they count as fed.
    """
    room = context - bos
    scored = min(1 + context, ids)
    if ids > 1:
        yield Window(0, 1, scored)
    while scored < ids:
        end = min(scored + max(1, room), ids)
        yield Window(end - 1 - room, scored, end)
        scored = end


def strided(ids: int, context: int, stride: int, bos: int = 0) -> Iterator[Window]:
    """Windows as in transformers' guide to perplexity: ``context`` ids with the targets, each ``stride`` ids behind the one before.

    ids, context, bos: as for ``rolling``; BOS takes the place of a window's first id. stride: at most ``context``. Where the
    windows then share no id (stride = context), the id before is fed too: the guide leaves a window's first token out.
    """
    scored, start = 1, 0
    while scored < ids:
        end = min(start + context, ids)
        if end > scored:
            yield Window(0 if start == 0 else min(start + bos, scored - 1 + bos), scored, end)
            scored = end
        start += stride
