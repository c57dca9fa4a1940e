"""What keeps the answers of a model for lm-eval: it says which are known, and is given each new one at once.

Knows neither files nor models; ``jobs/evals`` keeps answers in a run directory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...runner.core.outcomes import Outcome


class Answers(Protocol):
    """Keeps answers. A call of lm-eval begins with all its requests; each answer is added by its request's place among them."""

    def begin(self, requests: Sequence[Any]) -> Mapping[int, Any]:
        """Is given the requests (``Instance``) of one call in order. Returns the answers that need not be computed, by place."""
        ...

    def loaded(self, info: Mapping[str, Any]) -> None:
        """Is told that the model is loaded, with the facts about it. Called before an answer is added."""
        ...

    def add(self, place: int, outcome: Outcome, answer: Any) -> None:
        """Takes the answer of the request at ``place`` of the last ``begin``, and the engine's outcome that it was made of."""
        ...

    def stopped(self) -> bool:
        """Returns True when the evaluation is to end before it is complete."""
        ...

    def model_info(self) -> dict[str, Any] | None:
        """Returns what ``loaded`` was told by an earlier session; None where there was none."""
        ...


class NoAnswers:
    """Keeps nothing: each call computes all its answers."""

    def begin(self, requests: Sequence[Any]) -> Mapping[int, Any]:
        """Returns no answers."""
        return {}

    def loaded(self, info: Mapping[str, Any]) -> None:
        """Does nothing."""

    def add(self, place: int, outcome: Outcome, answer: Any) -> None:
        """Does nothing."""

    def stopped(self) -> bool:
        """Returns False."""
        return False

    def model_info(self) -> dict[str, Any] | None:
        """Returns None."""
        return None
