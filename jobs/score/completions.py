"""Encodes a prompt and its completions as tokens: where the two meet, and how a prompt that is too long is cut.

The border is lm-eval's: white space at the prompt's end moves to the completion, and both are tokenized as one text. If the prompt
alone has n tokens, those after the first n are scored. Knows no choices and no labels; several completions share a prompt.

    prompt "Answer:\\n"  completion "B"      tokenized  "Answer:\\nB"      tokens  Answer : \\n B
                                            prompt     "Answer:"         scored           x  x
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...runner.core.arrays import Ids
from ...runner.core.errors import RowError
from ...runner.core.images import PromptImage
from ...runner.core.requests import Prompt, Row
from ...runner.images.row_pictures import RowPictures
from ...runner.templates.prompt_templates import Rendered, Text
from ...runner.text.tokenizer import Tokenizer
from .scored_text import ScoredText, last_indices, prepend_prefix, too_long_error, whole_text

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True, frozen=True)
class PromptCompletions:
    """Completions of one prompt of ``prompt_tokens`` tokens (before it is cut), in their order. images: the prompt's."""

    prompt_tokens: int
    completions: tuple[ScoredText, ...]
    images: tuple[PromptImage, ...] = ()


@dataclass(slots=True)
class CompletionEncoder:
    """Encodes the completions of a prompt.

    prefix: the token before a completion without a prompt. context: most tokens fed, None for no limit. too_long: error,
    truncate_left or truncate_right, for the prompt alone.
    """

    tokenizer: Tokenizer
    prefix: int | None
    context: int | None
    too_long: str
    warned: bool = field(default=False, init=False)

    def encode(self, row: Row, rendered: Rendered, completions: Sequence[str], pictures: RowPictures | None = None) -> PromptCompletions:
        """Encodes the ``completions`` (at least one) of a row's prompt. pictures: encodes one that may hold some. Raises RowError."""
        if not all(completions):
            which = f"the completion at index {completions.index('')} of {len(completions)}" if len(completions) > 1 else "the completion"
            raise RowError("tokenize", f"{which} is empty; at least one character is expected")
        placed = None if pictures is None else pictures.text_of(rendered)
        text, raw = self._text(rendered) if placed is None else placed.shown, isinstance(rendered, Text)
        prompt = text.rstrip()
        moved = text[len(prompt) :]

        def encoded(tail: str) -> Prompt:
            return self._encode(prompt + tail, raw) if placed is None else placed.followed_by(tail).prompt(open_end=True)

        before = encoded("").ids if prompt else np.zeros(0, np.int32)
        if len(before):
            wholes = [encoded(moved + completion) for completion in completions]
        else:
            before, wholes = self._unprompted([prompt + moved + completion for completion in completions])
        if any(len(whole.ids) <= len(before) for whole in wholes):
            what = f"prompt and completion have as many tokens as the prompt alone, {len(before)}"
            raise RowError("tokenize", f"nothing is left to score: {what}; end the prompt, or begin the completion, with a space")
        self._warn(row, before, wholes)
        images = () if placed is None else placed.images
        scored = [_scored(whole, len(before), len(prompt)) for whole in wholes]
        return PromptCompletions(len(before), self._fit(len(before), scored, len(images)), images)

    def _text(self, rendered: Rendered) -> str:
        return rendered.text if isinstance(rendered, Text) else self.tokenizer.chat_text(rendered.messages, rendered.prefill or "")

    def _encode(self, text: str, raw: bool) -> Prompt:
        """Encodes a ``raw`` text with the tokenizer's special tokens before it, or a rendered chat, which has its own."""
        return self.tokenizer.encode_prefix(text) if raw else self.tokenizer.encode_text(text)

    def _unprompted(self, texts: list[str]) -> tuple[Ids, list[Prompt]]:
        if self.prefix is None:
            cure = "set score.prefix to bos_or_eos" if self.tokenizer.bos is None else "set score.prefix to bos or bos_or_eos"
            raise RowError("tokenize", f"the prompt is empty, and there is no prefix token to score the completion behind; {cure}")
        return np.array([self.prefix], np.int32), [prepend_prefix(self.tokenizer.encode_text(text), self.prefix) for text in texts]

    def _warn(self, row: Row, before: Ids, wholes: list[Prompt]) -> None:
        """Warns once a run if the tokens before the completion are not the prompt's own."""
        if not self.warned and any(whole.ids[: len(before)].tolist() != before.tolist() for whole in wholes):
            self.warned = True
            log.warning(
                "row %d: the tokenizer joins the prompt's last characters with the completion's first ones; as in lm-eval, the tokens "
                "behind the first %d are scored, and the model reads those before them (said once)",
                *(row.position, len(before)),
            )

    def _fit(self, n: int, completions: list[ScoredText], pictures: int) -> tuple[ScoredText, ...]:
        """Cuts the prompt of ``n`` tokens so that its longest completion fits. Raises RowError where it may not or does not."""
        longest = max(len(tokens.ids) for tokens in completions) - n
        if self.context is None or n + longest <= self.context + 1:
            return tuple(completions)
        if longest > self.context:
            raise RowError("too_long", f"the completion has {longest} tokens, and the context takes {self.context}; it is never cut")
        if pictures:
            found = f"the prompt has {n} tokens with {pictures} picture{'s' * (pictures != 1)}, the completion {longest}"
            raise RowError("too_long", f"{found}, and the context takes {self.context}; a prompt with pictures is never cut")
        if self.too_long == "error":
            raise too_long_error(f"the prompt has {n} tokens, the completion {longest}", self.context)
        keep = self.context + 1 - longest
        left = self.too_long == "truncate_left"

        def cut(tokens: ScoredText) -> ScoredText:
            index = last_indices(tokens.ids[:n], keep, self.tokenizer.bos) if left else np.arange(keep)
            return tokens.select(np.append(index, np.arange(n, len(tokens.ids))))

        return tuple(map(cut, completions))


def _scored(whole: Prompt, n: int, start: int) -> ScoredText:
    """Returns a prompt of ``n`` tokens with its completion, which starts at the code point ``start`` and is scored."""
    return whole_text(whole, np.arange(len(whole.ids)) >= n, ((start, len(whole.text)),))
