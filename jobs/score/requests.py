"""What a row of a scoring job asks of the scorer, with what its record will say beside the scores: texts, and choices.

Both are a ``ScoreRequest`` to the scorer, which looks at their passages alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...runner.core.arrays import Ids
from ...runner.core.requests import Passage, ScoreRequest
from .completions import PromptCompletions
from .scored_text import ScoredText
from .windows import Window


@dataclass(slots=True, frozen=True, kw_only=True)
class TextRequest(ScoreRequest):
    """A document, a completion or a chat: the scores of all passages, one after another, are those of its scored tokens."""

    tokens: ScoredText

    @property
    def text_tokens(self) -> int:
        """Tokens of the text that is scored, however many windows it is cut into."""
        return len(self.tokens.ids)


@dataclass(slots=True, frozen=True, kw_only=True)
class ChoicesRequest(ScoreRequest):
    """Choices behind one prompt of ``prompt_tokens`` tokens: a passage each. label: the right one's index, if it is known."""

    choices: tuple[str, ...]
    prompt_tokens: int
    label: int | None

    @property
    def choice_ids(self) -> list[Ids]:
        """The scored token ids of each choice."""
        return [passage.ids[passage.positions] for passage in self.passages]


def document_request(row: int, tokens: ScoredText, windows: Iterable[Window], bos: int | None) -> TextRequest:
    """A document, a passage a window; ``bos`` is put before each that does not start where the document does, None for nothing."""
    passages = tuple(_window(tokens.ids, window, bos) for window in windows)
    return TextRequest(row=row, passages=passages, tokens=tokens, truncated=tokens.truncated)


def _window(ids: Ids, window: Window, bos: int | None) -> Passage:
    fed, positions = ids[window.start : window.end], np.arange(window.scored, window.end) - window.start
    if bos is not None and window.start > 0:
        fed, positions = np.append(np.int32(bos), fed), positions + 1
    return Passage(fed, positions.astype(np.int32))


def text_request(row: int, tokens: ScoredText) -> TextRequest:
    """A text in one passage; in none where nothing of it is scored."""
    passages = (_passage(tokens),) if tokens.scored.any() else ()
    return TextRequest(row=row, passages=passages, tokens=tokens, truncated=tokens.truncated)


def choices_request(row: int, choices: tuple[str, ...], continued: PromptCompletions, label: int | None) -> ChoicesRequest:
    """The choices, each as a completion of the prompt."""
    return ChoicesRequest(
        row=row,
        passages=tuple(map(_passage, continued.completions)),
        choices=choices,
        prompt_tokens=continued.prompt_tokens,
        label=label,
        truncated=any(tokens.truncated for tokens in continued.completions),
    )


def _passage(tokens: ScoredText) -> Passage:
    """The tokens up to the last that is scored."""
    positions = np.flatnonzero(tokens.scored).astype(np.int32)
    return Passage(tokens.ids[: positions[-1] + 1], positions)
