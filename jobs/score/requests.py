"""Builds the scorer's requests: for texts, and for choices.

Each carries its row's own values for the record. The scorer sees a ``ScoreRequest`` and reads its passages alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...runner.core.arrays import Ids
from ...runner.core.images import PromptImage
from ...runner.core.requests import Passage, ScoreRequest
from .completions import PromptCompletions
from .scored_text import ScoredText
from .windows import Window


@dataclass(slots=True, frozen=True, kw_only=True)
class TextRequest(ScoreRequest):
    """A document, a completion or a chat. The scores of its passages, joined in order, belong to its scored tokens."""

    tokens: ScoredText

    @property
    def text_tokens(self) -> int:
        """The number of the text's tokens, however many windows it is cut into."""
        return len(self.tokens.ids)


@dataclass(slots=True, frozen=True, kw_only=True)
class ChoicesRequest(ScoreRequest):
    """Choices of one prompt of ``prompt_tokens`` tokens, a passage each. label: the index of the right choice, None if unknown."""

    choices: tuple[str, ...]
    prompt_tokens: int
    label: int | None

    @property
    def choice_ids(self) -> list[Ids]:
        """The scored token ids of each choice."""
        return [passage.ids[passage.positions] for passage in self.passages]


def document_request(row: int, tokens: ScoredText, windows: Iterable[Window], bos: int | None) -> TextRequest:
    """Returns a document's request, a passage a window. ``bos``, if any, goes before each window but one at the document's start."""
    passages = tuple(_window(tokens.ids, window, bos) for window in windows)
    return TextRequest(row=row, passages=passages, tokens=tokens, truncated=tokens.truncated)


def _window(ids: Ids, window: Window, bos: int | None) -> Passage:
    fed, positions = ids[window.start : window.end], np.arange(window.scored, window.end) - window.start
    if bos is not None and window.start > 0:
        fed, positions = np.append(np.int32(bos), fed), positions + 1
    return Passage(fed, positions.astype(np.int32))


def text_request(row: int, tokens: ScoredText, images: tuple[PromptImage, ...] = ()) -> TextRequest:
    """Returns a text's request: one passage, or none where no token is scored. images: those that its ids stand for."""
    passages = (_passage(tokens),) if tokens.scored.any() else ()
    return TextRequest(row=row, passages=passages, tokens=tokens, truncated=tokens.truncated, images=images)


def choices_request(row: int, choices: tuple[str, ...], encoded: PromptCompletions, label: int | None) -> ChoicesRequest:
    """Returns the request of choices, each a completion of the prompt."""
    return ChoicesRequest(
        row=row,
        passages=tuple(map(_passage, encoded.completions)),
        choices=choices,
        prompt_tokens=encoded.prompt_tokens,
        label=label,
        truncated=any(tokens.truncated for tokens in encoded.completions),
        images=encoded.images,
    )


def _passage(tokens: ScoredText) -> Passage:
    """Returns the tokens up to the last scored one."""
    positions = np.flatnonzero(tokens.scored).astype(np.int32)
    return Passage(tokens.ids[: positions[-1] + 1], positions)
