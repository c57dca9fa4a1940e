"""A batch of deterministic mode, for a second try when memory runs out: it is computed again as it was. Knows no model and no caches.

Its rows share every product, so leaving out those that are done would change the bits of the others. They are computed again too, and
what comes out a second time is dropped.
"""

from dataclasses import dataclass, field

from ..core.outcomes import Failure, Outcome
from ..core.requests import Request


@dataclass(slots=True)
class FixedBatch:
    """The requests of a batch, in their order.

    counts: tokens of prompts and of completions before it. repeats: it is to be computed again.
    """

    requests: list[Request]
    counts: tuple[int, int]
    repeats: bool = False
    _out: set[tuple[int, int | None]] = field(default_factory=set[tuple[int, int | None]])

    @property
    def samples(self) -> set[tuple[int, int]]:
        """Returns its input rows and the samples of each."""
        return {(request.row, index) for request in self.requests for index in request.samples}

    @property
    def done(self) -> bool:
        """Returns True when the outcomes of all samples are out."""
        return self.samples <= self._out

    def new(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Returns those of the ``outcomes`` that come for the first time, and notes them."""
        places = [(one.row, one.sample if isinstance(one, Failure) else one.index) for one in outcomes]
        first = [one for one, place in zip(outcomes, places, strict=True) if place not in self._out]
        self._out.update(places)
        return first
