"""Vectors of texts: requests in, one vector an input out. Knows no text, no files and no job.

The inputs of a window are sorted by length in portions, and neighbours go through the model together, padded on the right. When memory
runs out, the inputs of a window that are not done are planned again, in smaller batches; in deterministic mode in batches of the same
shapes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from ..caches.image_blocks import attends_in_blocks
from ..core.arrays import Floats
from ..core.errors import first_line, is_out_of_memory
from ..core.outcomes import Failure, Outcome, Pooled
from ..core.progress import Progress
from ..core.requests import PoolRequest
from ..engine.interface import FixedWeights
from ..engine.oom_backoff import MemoryBackoff
from ..engine.setup import Setup
from ..models.device_memory import limit_spare_memory
from ..patched_layers.rope_layers import has_positions
from ..pooling.decoder_body import DecoderBody
from ..pooling.vectors import PoolingNetwork
from ..scheduler.limits import Limits
from ..scheduler.pool_batches import OwnedInput, PoolBatch, fixed_pool_batches, fixed_shape, owned_inputs, pool_batches


@dataclass(slots=True)
class _OpenRow:
    """A row whose vectors are not all there. vectors: by the inputs' places. done: its outcome is out."""

    request: PoolRequest
    vectors: dict[int, Floats] = field(default_factory=dict[int, Floats])
    done: bool = False


@dataclass(slots=True)
class _Window:
    """A window's rows, the inputs that are not computed, and the batch that is computed now. ``stopped`` is asked before each batch."""

    rows: list[_OpenRow]
    inputs: list[OwnedInput]
    stopped: Callable[[], bool]
    batch: PoolBatch | None = None

    def parts(self, batch: PoolBatch) -> set[tuple[int, int]]:
        """Returns what a batch computes: input rows and the texts of each."""
        return {(self.rows[row].request.row, place) for each in batch.inputs for row, place in each.owners}


class Pooler(FixedWeights):
    """Computes the vectors of requests with one pooling model."""

    def __init__(self, setup: Setup):
        self.progress = Progress()
        self._setup = setup
        self._room = MemoryBackoff(setup.limits)

    def run(
        self, next_window: Callable[[bool], list[PoolRequest] | None], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Outcome]:
        """Yields the outcomes of all windows' requests, each as soon as its last vector is there; ends early when ``stopped``.

        ``next_window(wait)`` gives the next window's requests, None when there are no more.
        """
        while not stopped():
            self.progress.doing("waiting for input")
            requests = next_window(True)
            if requests is None:
                return
            # In deterministic mode equal inputs are computed each for itself, as no batch's shape may depend on contents.
            inputs = owned_inputs(requests, shared=not self._setup.static)
            yield from self._pool_window(_Window([_OpenRow(request) for request in requests], inputs, stopped))

    def _pool_window(self, window: _Window) -> Iterator[Outcome]:
        yield from (self._outcome(row) for row in window.rows if not row.request.inputs)
        while window.inputs:
            why = ""
            try:
                for batch in pooling_batches(self._setup, self._room.limits, window.inputs):
                    if window.stopped():
                        return
                    window.batch = batch
                    yield from self._pool_batch(window, batch)
            except Exception as error:
                if not (window.batch and is_out_of_memory(error)):
                    raise
                why = first_line(error)
            if not why:
                return
            yield from self._restart(window, why)  # the error is gone, and with its traceback the arrays that it held

    def _pool_batch(self, window: _Window, batch: PoolBatch) -> Iterator[Outcome]:
        self.progress.note_in_flight({row for row, _ in window.parts(batch)})
        self.progress.doing(f"computing {len(batch.inputs)} texts of up to {max(map(len, batch.inputs))} tokens")
        vectors = self._vectors(batch)
        self.progress.prefilled += batch.tokens
        self.progress.padded += batch.rows * batch.width
        limit_spare_memory()
        for each, vector in zip(batch.inputs, vectors, strict=False):  # dummies come last
            for number, place in each.owners:
                row = window.rows[number]
                row.vectors[place] = vector
                if len(row.vectors) == len(row.request.inputs) and not row.done:
                    yield self._outcome(row)
            each.owners.clear()

    def _vectors(self, batch: PoolBatch) -> Floats:
        """Runs a batch through the model: vectors [rows, D]. A dummy is one token."""
        lengths, starts = [1] * batch.rows, [0] * batch.rows
        tokens, types = np.zeros((2, batch.rows, batch.width), np.int32)
        for row, each in enumerate(batch.inputs):
            lengths[row], starts[row] = len(each), each.input.start
            tokens[row, : len(each)] = each.input.ids
            if each.input.types is not None:
                types[row, : len(each)] = each.input.types
        typed = any(each.input.types is not None for each in batch.inputs)
        return np.array(self._setup.model(tokens, lengths, starts, mx.array(types) if typed else None))

    def _outcome(self, row: _OpenRow) -> Outcome:
        request, row.done = row.request, True
        self.progress.prompt += request.text_tokens
        self._room.done()
        vectors = [row.vectors.pop(place) for place in range(len(request.inputs))]
        if request.images and (fault := self._setup.model.unread(request.images)) is not None:
            return Failure(request.row, None, 0, fault.stage, fault.name, str(fault), "")
        bad = next((place for place, vector in enumerate(vectors) if not np.isfinite(vector).all()), None)
        if bad is not None:
            where = f"text {bad + 1} of {len(vectors)}: " if len(vectors) > 1 else ""
            return Failure(request.row, None, 0, "pool", "NotFinite", where + self._not_finite(vectors[bad]), "")
        values = np.stack(vectors) if vectors else np.zeros((0, self._setup.dimensions), np.float32)
        return Pooled(request.row, values)

    def _not_finite(self, vector: Floats) -> str:
        """Says what is wrong with a vector that holds NaN or infinity, and what may mend it."""
        found = f"{int(np.count_nonzero(~np.isfinite(vector)))} of the model's {len(vector)} numbers for it are NaN or infinite"
        arrays: list[Any] = [leaf for _, leaf in tree_flatten(self._setup.model.parameters())]
        if any(leaf.dtype == mx.float16 for leaf in arrays):
            return f"{found}: float16 holds no number above 65,504; set model.dtype to float32 or bfloat16"
        return (
            f"{found}: the checkpoint's weights give no result for this text; look for NaN in them, or for a text of special tokens alone"
        )

    def _restart(self, window: _Window, why: str) -> Iterator[Outcome]:
        """Makes batches smaller. A text that did not fit alone costs the rows that need it; the window's other texts go on."""
        batch, doing = window.batch, self.progress.activity.now
        assert batch is not None
        if self._setup.static:
            self._room.repeat(window.parts(batch), doing, why)
        elif batch.rows > 1:
            self._room.halve(batch.rows, batch.width, doing, why)
        else:
            yield from self._give_up(window, batch.inputs[0], doing, why)
        window.batch = None
        window.inputs = [each for each in window.inputs if any(not window.rows[row].done for row, _ in each.owners)]

    def _give_up(self, window: _Window, too_large: OwnedInput, doing: str, why: str) -> Iterator[Outcome]:
        rows = [window.rows[number] for number in dict.fromkeys(number for number, _ in too_large.owners)]
        rows = [row for row in rows if not row.done]
        numbers = ", ".join(str(row.request.row) for row in rows)
        self._room.free(doing, why, f"{'row' if len(rows) == 1 else 'rows'} {numbers} {'is' if len(rows) == 1 else 'are'} given up")
        self._room.give_up(why)
        for row in rows:
            row.done = True
            message = f"out of device memory with this text alone: {len(too_large)} tokens ({why}); shorten it, or lower max_length"
            yield Failure(row.request.row, None, 0, "pool", "OutOfMemory", message, "")


def pooling_batches(setup: Setup, limits: Limits, inputs: Sequence[OwnedInput]) -> Iterator[PoolBatch]:
    """Yields the batches in which the pooler computes a window's ``inputs`` with these ``limits``."""
    if not setup.static:
        return pool_batches(inputs, limits)
    body = setup.model.body if isinstance(setup.model, PoolingNetwork) else None
    network = body.network if isinstance(body, DecoderBody) else None
    # Where a picture changes how a whole call is computed, a row has a batch of its own. The network says so: a plan has no pictures.
    if not setup.features.any_slot or has_positions(network) or attends_in_blocks(network):
        return fixed_pool_batches(inputs, lambda length: (1, length))
    return fixed_pool_batches(inputs, lambda length: fixed_shape(limits, length, setup.positions))
