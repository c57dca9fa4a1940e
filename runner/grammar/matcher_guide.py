"""Follows one completion under a grammar: llguidance's matcher behind the contract of ``Guide``."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from .compiler_input import reason

Accepts = Callable[[list[int]], bool]


@dataclass(slots=True, frozen=True)
class Endings:
    """The ids that end a completion, EOS and a row's stop ids. bits: them as a mask [ceil(V / 32)]."""

    ids: frozenset[int]
    bits: NDArray[np.int32]

    @classmethod
    def of(cls, ids: frozenset[int], width: int) -> "Endings":
        """Returns the endings of a model with logits of ``width``."""
        marks = np.zeros(-(-width // 32) * 32, np.uint8)
        marks[list(ids)] = 1
        return cls(ids, np.packbits(marks, bitorder="little").view("<i4").astype(np.int32))


class MatcherGuide:
    """A guide on a matcher that stands at the grammar's beginning; implements ``runner.core.guide.Guide``.

    spare: takes the matcher back when nobody holds the guide any more; its tables are filled then, and the next completion is faster.
    accepts: judges a finished completion's ids where the grammar alone does not.
    """

    def __init__(self, matcher: LLMatcher, endings: Endings, spare: list[LLMatcher], accepts: Accepts | None):
        self._matcher, self._endings, self._spare, self._accepts = matcher, endings, spare, accepts
        self._ids: list[int] = []
        self.error: str | None = None

    def __del__(self) -> None:
        if self.error is None and self._matcher.reset() and not self._matcher.is_error():
            self._spare.append(self._matcher)

    @property
    def complete(self) -> bool:
        """True when the tokens so far are a whole text of the grammar."""
        whole = self.error is None and self._matcher.is_accepting()
        return whole and (self._accepts is None or self._accepts(self._ids))

    def fill(self, into: NDArray[np.int32]) -> bool:
        """Writes which ids may come next. Sets ``error`` where the matcher fails, or where no id is left."""
        self._matcher.unsafe_compute_mask_ptr(into.ctypes.data, into.nbytes)
        if self._matcher.is_error():  # it offers EOS then, and raises nothing
            self.error = reason(self._matcher.get_error())
            return True
        if self._matcher.is_accepting():
            into |= self._endings.bits
        else:
            into &= ~self._endings.bits
            if not into.any():
                self.error = "no token is allowed here but those that end a completion, and the text is not whole"
        return True

    def push(self, token: int) -> None:
        """Takes the token that was drawn. One that ends the completion leaves the matcher as it is."""
        if token in self._endings.ids:
            return
        if self._accepts is not None:
            self._ids.append(token)
        if not self._matcher.consume_token(token):
            self.error = reason(self._matcher.get_error())
