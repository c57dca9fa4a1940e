"""Vectors of texts: requests in, one vector an input out. Knows no text, no files and no job.

The inputs of a window are sorted by length, and neighbours go through the model together, padded on the right.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..core.arrays import Floats
from ..core.outcomes import Failure, Outcome, Pooled
from ..core.requests import PoolRequest, TokenInput
from ..engine.interface import FixedWeights
from ..engine.progress import Progress
from ..engine.setup import Setup


@dataclass(slots=True)
class _OpenRequest:
    """A request whose vectors are not all there. vectors: by the inputs' places."""

    request: PoolRequest
    vectors: dict[int, Floats] = field(default_factory=dict[int, Floats])

    @property
    def done(self) -> bool:
        return len(self.vectors) == len(self.request.inputs)


@dataclass(slots=True, frozen=True)
class _Place:
    """An input and where its vector belongs."""

    row: _OpenRequest
    index: int

    @property
    def input(self) -> TokenInput:
        return self.row.request.inputs[self.index]


class Pooler(FixedWeights):
    """Computes the vectors of requests with one pooling model."""

    def __init__(self, setup: Setup):
        self.progress = Progress()
        self._setup = setup

    def run(
        self, next_window: Callable[[bool], list[PoolRequest] | None], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Outcome]:
        """Yields the outcomes of all windows' requests, each as soon as its last vector is there; ends early when ``stopped``."""
        while not stopped():
            self.progress.doing("waiting for input")
            requests = next_window(True)
            if requests is None:
                return
            places = [_Place(row, index) for row in map(_OpenRequest, requests) for index in range(len(row.request.inputs))]
            for batch in self._batches(sorted(places, key=lambda place: -len(place.input.ids))):
                if stopped():
                    return
                yield from self._pool_batch(batch)

    def _batches(self, places: Sequence[_Place]) -> Iterator[Sequence[_Place]]:
        """Yields batches of neighbours within the limits of rows and padded tokens."""
        at = 0
        while at < len(places):
            rows = max(1, min(self._setup.limits.rows, self._setup.limits.tokens // len(places[at].input.ids)))
            yield places[at : at + rows]
            at += rows

    def _pool_batch(self, batch: Sequence[_Place]) -> Iterator[Outcome]:
        inputs = [place.input for place in batch]
        lengths = [len(each.ids) for each in inputs]
        width = max(lengths)
        self.progress.note_in_flight({place.row.request.row for place in batch})
        self.progress.doing(f"embedding {len(batch)} texts of up to {width} tokens")
        tokens, types = np.zeros((2, len(batch), width), np.int32)
        for row, each in enumerate(inputs):
            tokens[row, : lengths[row]] = each.ids
            if each.types is not None:
                types[row, : lengths[row]] = each.types
        token_types = mx.array(types) if any(each.types is not None for each in inputs) else None
        vectors = np.array(self._setup.model(mx.array(tokens), lengths, [each.start for each in inputs], token_types))
        self.progress.prefilled += sum(lengths)
        self.progress.padded += tokens.size
        for place, vector in zip(batch, vectors, strict=True):
            place.row.vectors[place.index] = vector
            if place.row.done:
                yield self._outcome(place.row)

    def _outcome(self, row: _OpenRequest) -> Outcome:
        request = row.request
        self.progress.prompt += request.text_tokens
        values = np.stack([row.vectors[index] for index in range(len(request.inputs))])
        if not np.isfinite(values).all():
            return Failure(request.row, None, 0, "pool", "NotFinite", "the model's vector holds NaN or infinity", "")
        return Pooled(request.row, values)
