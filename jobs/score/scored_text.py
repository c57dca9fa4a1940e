"""A text that is to be scored, as tokens: which of them are scored, and what of the text they cover. Documents and chats.

Nothing here runs a model; windows and passages are made of these elsewhere.
"""

import re
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.requests import Prompt
from ...runner.text.assistant_spans import Span, Turns
from ...runner.text.tokenizer import Tokenizer

WORD_BORDER = re.compile(r"\s+")


@dataclass(slots=True, frozen=True)
class ScoredText:
    """Token ids [T] of ``text``, the code point at which each starts [T], and which of them are scored [T].

    spans: what of the text is asked about, in code points, less what special tokens stand for. until: the code point at which
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
        """The text that is asked about."""
        return [self.text[start:end] for start, end in self.spans]

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the text that is asked about."""
        return sum(len(part.encode()) for part in self.parts)

    @property
    def chars(self) -> int:
        """Code points of the text that is asked about."""
        return sum(end - start for start, end in self.spans)

    @property
    def covered(self) -> list[str]:
        """What of it scored tokens cover; a character that is scored in part counts whole."""
        at = np.flatnonzero(self.scored)
        if not len(at):
            return []
        first = int(self.offsets[at[0]])
        parts = (self.text[max(start, first) : min(end, self.until)] for start, end in self.spans)
        return [part for part in parts if part]

    @property
    def words(self) -> int:
        """Words as lm-eval counts them for word_perplexity: the pieces between white space, empty ones too.

        Of a text that was cut, only what scored tokens cover.
        """
        return sum(len(WORD_BORDER.split(part)) for part in (self.covered if self.truncated else self.parts))

    @property
    def scored_bytes(self) -> int:
        """UTF-8 bytes that scored tokens cover."""
        return sum(len(part.encode()) for part in self.covered)

    def kept(self, index: NDArray[np.intp]) -> Self:
        """The tokens at ``index``, which is ascending and leaves some out; the first is never scored."""
        last = int(index[-1]) + 1
        until = int(self.offsets[last]) if last < len(self.ids) else self.until
        scored = self.scored[index]
        scored[:1] = False
        return replace(self, ids=self.ids[index], offsets=self.offsets[index], scored=scored, until=until, truncated=True)


def whole_text(prompt: Prompt, scored: NDArray[np.bool_], spans: tuple[Span, ...]) -> ScoredText:
    """The tokens of a text of which nothing is left out."""
    return ScoredText(prompt.text, prompt.ids, prompt.offsets, scored, spans, len(prompt.text))


def prepend_prefix(prompt: Prompt, prefix: int | None) -> Prompt:
    """A text's tokens behind the ``prefix`` token, which is not doubled where the text brings it."""
    if prefix is None or (len(prompt.ids) and prompt.ids[0] == prefix):
        return prompt
    return Prompt(prompt.text, np.append(np.int32(prefix), prompt.ids), np.append(np.int32(0), prompt.offsets))


def encode_document(text: str, tokenizer: Tokenizer, prefix: int | None) -> ScoredText:
    """A document, scored but for what stands first: the prefix token, or without one the text's own first token."""
    prompt = prepend_prefix(tokenizer.encode_text(text), prefix)
    return whole_text(prompt, np.arange(len(prompt.ids)) > 0, ((0, len(text)),))


def fit_chat(turns: Turns, bos: int | None, context: int | None, too_long: str) -> ScoredText:
    """A chat of which the assistant's turns are scored, cut to ``context`` tokens and one more, which is never fed.

    What stands behind the last turn is not fed either, and does not count. Raises RowError where the rest does not fit and
    ``too_long`` is error.
    """
    scored = np.zeros(len(turns.prompt.ids), np.bool_)
    for start, end in turns.tokens:
        scored[start:end] = True
    scored[:1] = False
    whole = whole_text(turns.prompt, scored, turns.said)
    n = int(np.flatnonzero(scored)[-1]) + 1 if scored.any() else 0
    if context is None or n <= context + 1:
        return whole
    if too_long == "error":
        raise too_long_error(f"the chat has {n} tokens to the end of the assistant's last turn", context)
    if too_long == "truncate_right":
        return whole.kept(np.arange(context + 1))
    return whole.kept(last_indices(whole.ids[:n], context + 1, bos))


def last_indices(ids: Ids, keep: int, bos: int | None) -> NDArray[np.intp]:
    """Indices of the last ``keep`` ids, of which the first gives way to a BOS that stands at the beginning."""
    index = np.arange(len(ids) - keep, len(ids))
    if keep > 1 and ids[0] == bos:
        index[0] = 0
    return index


def too_long_error(found: str, context: int) -> RowError:
    """The error for a text that can be cut, and is not to be."""
    cure = "shorten it, or set prompt.too_long to truncate_left or truncate_right"
    return RowError("too_long", f"{found}, and the context takes {context} and one more that is scored; {cure}")
