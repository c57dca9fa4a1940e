"""Counts the tokens of each row, so that they travel with its records: a driver counts those of records that it keeps."""

import threading
from collections.abc import Iterable

from ..cluster.messages import TokenCounts
from ..core.outcomes import Generated, Outcome, Scored
from ..core.requests import AnyRequest, PoolRequest, Request


class RowTokens:
    """The tokens of rows whose records were not sent yet. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, list[int]] = {}  # by position: of the prompt, generated, scored

    def note_window(self, window: list[AnyRequest] | None) -> list[AnyRequest] | None:
        """Counts the prompts of requests that the engine takes, and returns these."""
        for request in window or ():
            self._add(request.row, prompt=_prompt_tokens(request))
        return window

    def note_outcome(self, outcome: Outcome) -> None:
        """Counts what the engine has done for an outcome."""
        match outcome:
            case Generated():
                self._add(outcome.row, generated=len(outcome.ids))
            case Scored():
                self._add(outcome.row, scored=sum(len(scores.logprobs) for scores in outcome.scores))
            case _:
                pass

    def take(self, positions: Iterable[int]) -> tuple[TokenCounts, ...]:
        """Returns what was counted for rows since it was last taken."""
        with self._lock:
            found = {position: self._counts.pop(position, None) for position in positions}
        return tuple((position, counts[0], counts[1], counts[2]) for position, counts in found.items() if counts is not None)

    def _add(self, position: int, prompt: int = 0, generated: int = 0, scored: int = 0) -> None:
        with self._lock:
            counts = self._counts.setdefault(position, [0, 0, 0])
            for number, more in enumerate((prompt, generated, scored)):
                counts[number] += more


def _prompt_tokens(request: AnyRequest) -> int:
    if isinstance(request, Request):
        return len(request.prompt.ids)
    return request.text_tokens if isinstance(request, PoolRequest) else sum(len(passage.ids) for passage in request.passages)
