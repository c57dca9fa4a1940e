"""A row that is being scored: collects its scores piece by piece and makes the outcome of them. Knows no model and no batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...kernels import divergence, logprobs
from ...kernels.divergence import Divergence
from ...kernels.logprobs import Scores
from ..core.errors import RowError
from ..core.outcomes import Failure, Scored
from ..core.requests import ScoreRequest

NO_DIVERGENCE = Divergence(np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(0, np.bool_), np.zeros(0, np.float32))


@dataclass(slots=True)
class PartialScores:
    """A request and its scores so far: one list of pieces for each passage.

    ``left``: positions that are not scored yet. ``done``: its outcome is known.
    """

    request: ScoreRequest
    left: int
    scores: list[list[Scores]]
    divergences: list[list[Divergence]]
    done: bool = False

    @classmethod
    def of(cls, request: ScoreRequest) -> Self:
        """Starts a request of which nothing is scored."""
        left = sum(len(passage.positions) for passage in request.passages)
        return cls(request, left, [[] for _ in request.passages], [[] for _ in request.passages])

    def add(self, passage: int, scores: Scores, divergences: Divergence | None) -> None:
        """Adds the scores of a passage's next positions."""
        self.scores[passage].append(scores)
        if divergences is not None:
            self.divergences[passage].append(divergences)
        self.left -= len(scores.logprobs)

    def restart(self) -> int:
        """Drops all scores. Returns how many positions had some."""
        new = self.of(self.request)
        dropped, self.left = new.left - self.left, new.left
        self.scores, self.divergences = new.scores, new.divergences
        return dropped

    def outcome(self, nothing: Scores, unread: Sequence[RowError | None]) -> Scored | Failure:
        """Joins the pieces and lets them go.

        nothing: scores of no tokens. unread: for the model, and for the reference where there is one, why it has not read a picture.
        """
        compared, fault = len(unread) > 1, next(filter(None, unread), None)
        scores = tuple(logprobs.join_scores([nothing, *pieces]) for pieces in self.scores)
        against = tuple(divergence.join_divergences([NO_DIVERGENCE, *pieces]) for pieces in self.divergences) if compared else None
        message = _fault(self.request, "model", [s.logprobs for s in scores])
        message = message or _fault(self.request, "reference model", [d.reference_logprobs for d in against or ()])
        self.scores, self.divergences, self.done = [], [], True
        if fault is not None:
            return Failure(self.request.row, None, 0, fault.stage, fault.name, str(fault), "")
        if message:
            return Failure(self.request.row, None, 0, "score", "NotANumber", message, "")
        return Scored(self.request.row, scores, against)


def _fault(request: ScoreRequest, model: str, logprobs_of: list[NDArray[np.float32]]) -> str | None:
    """Says where a passage's logprobs are NaN; None where none is."""
    for number, values in enumerate(logprobs_of):
        if np.isnan(values).any():
            token = int(request.passages[number].positions[np.isnan(values).argmax()])
            return f"passage {number}, token {token}: the {model}'s logits there are NaN or all -inf"
    return None
