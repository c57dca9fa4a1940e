"""Makes a prompt and its completion fit into the model's context: fewer new tokens, or a part of the prompt."""

import logging
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from ...runner.core.errors import RowError
from ...runner.core.requests import Prompt, Sampling

log = logging.getLogger("mlx_bulk")


@dataclass(slots=True)
class ContextFit:
    """The model's context in tokens, None for any number; what becomes of prompts that fill it; the id of its BOS, if it has one."""

    context: int | None
    too_long: Literal["error", "truncate_left", "truncate_right"]
    bos: int | None
    _told: bool = field(default=False, init=False)  # of the first prompt that was cut

    def fit(self, prompt: Prompt, sampling: Sampling) -> tuple[Prompt, Sampling]:
        """Cuts prompt and max_tokens so that both fit into the context. Raises RowError where they cannot.

        A prompt that is cut leaves room for max_tokens, but at most half of the context; its BOS stays.
        """
        n = len(prompt.ids)
        if n == 0:
            raise RowError("tokenize", "the prompt has no tokens, and this tokenizer puts no BOS before it; expected at least one token")
        if self.context is None or n + sampling.max_tokens <= self.context:
            return prompt, sampling
        if n < self.context:
            return prompt, _with_max_tokens(sampling, self.context - n)
        if prompt.images:
            raise RowError("too_long", _uncut(prompt, self.context))
        if self.too_long == "error":
            raise RowError(
                "too_long",
                f"the prompt has {n} tokens, the model's context {self.context}: no room for one token more; "
                "shorten it, or set prompt.too_long to truncate_left or truncate_right",
            )
        keep = max(1, self.context - sampling.max_tokens, self.context // 2)
        self._tell_of_cut(n, keep)
        index = np.arange(keep) if self.too_long == "truncate_right" else np.arange(n - keep, n)
        if keep > 1 and prompt.ids[0] == self.bos:
            index[0] = 0
        cut = Prompt(prompt.text, prompt.ids[index], prompt.offsets[index])
        return cut, _with_max_tokens(sampling, self.context - keep)

    def _tell_of_cut(self, tokens: int, kept: int) -> None:
        """Warns once of prompts that are cut: their records look like any other."""
        if not self._told:
            self._told = True
            what = f"a prompt of {tokens:,} tokens was cut to {kept:,}"
            log.warning("%s to fit the context (prompt.too_long); nothing is said of further ones", what)


def _uncut(prompt: Prompt, context: int) -> str:
    tokens, pictures = sum(image.tokens for image in prompt.images), len(prompt.images)
    found = f"the prompt has {len(prompt.ids)} tokens, {tokens} of them of {pictures} picture{'s' * (pictures != 1)}"
    return f"{found}; the model's context is {context}, and a prompt with pictures is never cut; give fewer or smaller ones, or less text"


def _with_max_tokens(sampling: Sampling, most: int) -> Sampling:
    return replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))
