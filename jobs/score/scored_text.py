"""A text to score, as tokens: which of them are scored, and how much of the text they cover. For documents and chats.

Knows no model, no windows and no passages.
"""

import re
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.requests import Prompt
from ...runner.text.assistant_spans import AssistantTurns, Span
from ...runner.text.tokenizer import Tokenizer

WORD_BORDER = re.compile(r"\s+")


@dataclass(slots=True, frozen=True)
class ScoredText:
    """Token ids [T] of ``text``, the code point at which each starts [T], and which of them are scored [T].

    spans: the parts of the text that count, in code points, without the text of special tokens. until: the code point at which
    the last token ends. truncated: tokens were left out, since the context does not hold them all.
    """

    text: str
    ids: Ids
    offsets: Ids
    scored: NDArray[np.bool_]
    spans: tuple[Span, ...]
    until: int
    truncated: bool = False

    @property
    def parts(self) -> list[str]:
        """The texts of the spans."""
        return [self.text[start:end] for start, end in self.spans]

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the spans."""
        return sum(len(part.encode()) for part in self.parts)

    @property
    def chars(self) -> int:
        """Code points of the spans."""
        return sum(end - start for start, end in self.spans)

    @property
    def covered(self) -> list[str]:
        """The texts of the spans that scored tokens cover; a character that is scored in part counts whole."""
        at = np.flatnonzero(self.scored)
        if not len(at):
            return []
        first = int(self.offsets[at[0]])
        parts = (self.text[max(start, first) : min(end, self.until)] for start, end in self.spans)
        return [part for part in parts if part]

    @property
    def words(self) -> int:
        """Words as lm-eval counts them for word_perplexity: the pieces between white space, empty ones too.

        Of a text that was cut, only words that scored tokens cover count.
        """
        return sum(len(WORD_BORDER.split(part)) for part in (self.covered if self.truncated else self.parts))

    @property
    def scored_bytes(self) -> int:
        """UTF-8 bytes that scored tokens cover."""
        return sum(len(part.encode()) for part in self.covered)

    def select(self, index: NDArray[np.intp]) -> Self:
        """Returns the tokens at ``index``, which is ascending and leaves some out; the first is never scored."""
        last = int(index[-1]) + 1
        until = int(self.offsets[last]) if last < len(self.ids) else self.until
        scored = self.scored[index]
        scored[:1] = False
        return replace(self, ids=self.ids[index], offsets=self.offsets[index], scored=scored, until=until, truncated=True)


def whole_text(prompt: Prompt, scored: NDArray[np.bool_], spans: tuple[Span, ...]) -> ScoredText:
    """Returns the tokens of a whole text."""
    return ScoredText(prompt.text, prompt.ids, prompt.offsets, scored, spans, len(prompt.text))


def prepend_prefix(prompt: Prompt, prefix: int | None) -> Prompt:
    """Puts the ``prefix`` token before a text's tokens, unless the text begins with it."""
    if prefix is None or (len(prompt.ids) and prompt.ids[0] == prefix):
        return prompt
    return Prompt(prompt.text, np.append(np.int32(prefix), prompt.ids), np.append(np.int32(0), prompt.offsets))


def encode_document(text: str, tokenizer: Tokenizer, prefix: int | None) -> ScoredText:
    """Encodes a document. All tokens are scored but the first: the prefix, or without one the text's own first token."""
    prompt = prepend_prefix(tokenizer.encode_text(text), prefix)
    return whole_text(prompt, np.arange(len(prompt.ids)) > 0, ((0, len(text)),))


def fit_chat(turns: AssistantTurns, bos: int | None, context: int | None, too_long: str) -> ScoredText:
    """Marks the assistant's turns of a chat as scored, and cuts the chat to ``context`` tokens and one more, which is never fed.

    Tokens after the last turn are not fed either, and do not count. Raises RowError where the rest does not fit and ``too_long``
    is error.
    """
    scored = np.zeros(len(turns.prompt.ids), np.bool_)
    for start, end in turns.tokens:
        scored[start:end] = True
    scored[:1] = False
    whole = whole_text(turns.prompt, scored, turns.text_spans)
    n = int(np.flatnonzero(scored)[-1]) + 1 if scored.any() else 0
    if context is None or n <= context + 1:
        return whole
    if pictures := len(turns.prompt.images):
        found = f"the chat has {n} tokens to the end of the assistant's last turn, with {pictures} picture{'s' * (pictures != 1)}"
        raise RowError("too_long", f"{found}, and the context takes {context} and one more; a chat with pictures is never cut")
    if too_long == "error":
        raise too_long_error(f"the chat has {n} tokens to the end of the assistant's last turn", context)
    if too_long == "truncate_right":
        return whole.select(np.arange(context + 1))
    return whole.select(last_indices(whole.ids[:n], context + 1, bos))


def last_indices(ids: Ids, keep: int, bos: int | None) -> NDArray[np.intp]:
    """Returns the indices of the last ``keep`` ids; a BOS at the beginning replaces the first of them."""
    index = np.arange(len(ids) - keep, len(ids))
    if keep > 1 and ids[0] == bos:
        index[0] = 0
    return index


def too_long_error(lengths: str, context: int) -> RowError:
    """Returns the error for a text that could be cut but must not be."""
    cure = "shorten it, or set prompt.too_long to truncate_left or truncate_right"
    return RowError("too_long", f"{lengths}, and the context takes {context} and one more that is scored; {cure}")
