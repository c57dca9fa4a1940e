"""Logprobs of given tokens: requests in, scores of their passages out. Knows no text, no files and no job.

A window's passages form a tree of segments (see ``scheduler/prefix_tree``), so that a shared prefix is computed once. A batch of
sibling segments goes through the model together, on top of their parent's caches. Pads stand on the right, where no token sees them.

    parent   a b c d      children   a b c d|x .        each row has a copy of the parent's caches; where the CPU kernel computes all
                                     a b c d|y z        layers and the children are leaves, all rows read the parent's one copy

When memory runs out, the unfinished rows of a window are planned again, in smaller batches; in deterministic mode in batches of the same
shapes.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.divergence import Divergence
from ...kernels.logprobs import Scores
from ..caches.image_blocks import uncut
from ..core.errors import first_line, is_out_of_memory
from ..core.outcomes import Failure, Outcome
from ..core.progress import Progress
from ..core.requests import ScoreRequest
from ..engine.interface import FixedWeights
from ..engine.oom_backoff import MemoryBackoff
from ..engine.prefill import call_tokens
from ..engine.setup import Setup
from ..layers.state_scores import no_scores, read_scores, sent_ahead
from ..models.device_memory import limit_spare_memory
from ..scheduler.prefix_tree import Owner, Segment, bucket_length, forest, passage_input
from ..scheduler.score_batches import child_turns, fixed_batches, scoring_limits, segment_batches
from ..scheduler.score_calls import batch_width, call_reads, padded_tokens
from .batch_caches import BatchCaches, batch_caches
from .partial_scores import PartialScores
from .score_window import ScoreWindow
from .whole_calls import WholeCalls


class Scorer(FixedWeights):
    """Scores requests with one model, and compares it with a ``reference`` model where there is one.

    Both models compute the same batches, so a shortcut is taken only where both allow it.
    """

    def __init__(self, setup: Setup, reference: Setup | None = None):
        self.progress = Progress()
        self._models = [setup] if reference is None else [setup, reference]
        self._wanted, self._static = setup.wanted, setup.static
        self._right_padded = all(model.features.right_padded for model in self._models)
        self._shared = not setup.static and self._right_padded and all(model.features.shared_passages for model in self._models)
        self._whole_pictures = any(model.whole_pictures for model in self._models)
        limits = scoring_limits(setup.limits, self._right_padded)
        self._room = MemoryBackoff(limits, setup.ranks)
        self._ahead = reference is None and setup.head is not None and self._right_padded and sent_ahead(setup.wanted)
        self._calls = WholeCalls()

    def run(
        self, next_window: Callable[[bool], list[ScoreRequest] | None], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Outcome]:
        """Yields the outcomes of all windows' requests, each as soon as its last token is scored; ends early when ``stopped``.

        ``next_window(wait)`` gives the next window's requests, None when there are no more.
        """
        while not stopped():
            self.progress.doing("waiting for input")
            requests = next_window(True)
            if requests is None:
                return
            yield from self._score_window(ScoreWindow([PartialScores.of(request) for request in requests], self._shared, stopped))

    def _score_window(self, window: ScoreWindow) -> Iterator[Outcome]:
        yield from (self._outcome(row) for row in window.rows if not row.left)
        while window.unfinished():
            why = ""
            self._calls.clear()
            try:
                yield from self._score_rows(window)
            except Exception as error:
                if not (window.batch and is_out_of_memory(error)):
                    raise
                why = first_line(error)
            if not why:
                return
            yield from self._restart(window, why)  # the error is gone, and with its traceback the arrays that it held

    def _restart(self, window: ScoreWindow, why: str) -> Iterator[Outcome]:
        """Makes batches smaller and restarts all unfinished rows. Yields failures of the rows that do not fit alone.

        A single passage on top of a shared prefix is not alone yet: the rest of the window then shares nothing.
        """
        batch, doing = window.batch, self.progress.activity.now
        first, too_large = batch[0], set[int]()
        if self._static:
            self._room.repeat(window.parts, doing, why)
        elif len(batch) > 1:
            self._room.halve(len(batch), max(segment.longest for segment in batch), doing, why)
        elif first.start or first.children:
            window.shared = False
            self._room.free(doing, why, "the next rows are scored without sharing what they have in common")
        else:
            too_large = {row for part in first.reads if len(passage_input(part.passage)) == len(first.ids) for row, _ in part.owners}
            if self._room.halve_calls(window.rows[min(too_large)].request.row, doing, why):
                too_large = set[int]()
        self._models = [replace(model, limits=self._room.limits) for model in self._models]
        for number, row in enumerate(window.rows):
            if row.done:
                continue
            self.progress.scored -= row.restart()
            if number in too_large:
                row.done = True
                self._room.give_up(why)
                message = (
                    f"out of device memory with this row alone: {row.request.reach} tokens ({why}); shorten it, or lower score.context"
                )
                yield Failure(row.request.row, None, 0, "score", "OutOfMemory", message, "")

    # ---------------------------------------------------------------------------------------------------- batches

    def _score_rows(self, window: ScoreWindow) -> Iterator[Outcome]:
        requests = [row.request for row in window.rows]
        self.progress.doing(f"planning {len(requests)} rows")
        if self._static:
            yield from self._score_fixed(window, requests)
        else:
            yield from self._score_siblings(window, forest(requests, self._room.limits, window.shared))

    def _score_fixed(self, window: ScoreWindow, requests: list[ScoreRequest]) -> Iterator[Outcome]:
        """Scores each passage by itself, in batches of fixed shapes (deterministic mode)."""
        rows = min(model.fixed_rows for model in self._models)
        for batch in fixed_batches(requests, rows, bucket_length if self._right_padded else int):
            if window.stopped():
                return
            window.batch = batch
            yield from self._score_batch(window, batch, self._caches(batch))

    def _score_siblings(
        self, window: ScoreWindow, siblings: list[Segment], parent: BatchCaches | None = None, held_bytes: float = 0.0
    ) -> Iterator[Outcome]:
        """Scores sibling segments and all their descendants, on top of the one row of ``parent``.

        ``held_bytes``: KV caches of the ancestors. One batch's caches serve the next where its tokens can be trimmed off again.
        """
        spare: BatchCaches | None = None
        limits, equal_lengths = self._room.limits, not self._right_padded
        batches = segment_batches(siblings, limits, equal_lengths, held_bytes, whole_pictures=self._whole_pictures)
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            if window.stopped():
                return
            window.batch = batch
            caches, spare = self._caches(batch, parent, spare), None
            tokens_below = max(segment.longest for segment in batch) - batch[0].start
            reusable = parent is not None and caches.kept and caches.trimmable(tokens_below)
            if self._ahead and parent is None and not caches.kept:
                whole = following is not None and not self._caches(following).kept
                yield from self._score_whole(window, batch, following if whole else None)
                continue
            yield from self._score_batch(window, batch, caches)
            yield from self._score_children(window, batch, caches, held_bytes)
            if reusable:
                caches.trim(batch_width(batch))
                spare = caches

    def _score_children(self, window: ScoreWindow, batch: list[Segment], caches: BatchCaches, held_bytes: float) -> Iterator[Outcome]:
        """Scores the children of a batch on top of its ``caches``. Either all its segments have some, or none has."""
        if not batch[0].children:
            return
        if len(batch) == 1:
            own_bytes = self._room.limits.kv(1, len(batch[0].ids))
            yield from self._score_siblings(window, batch[0].children, caches, held_bytes + own_bytes)
        else:
            yield from self._score_turns(window, [segment.children for segment in batch], caches)

    def _score_turns(self, window: ScoreWindow, children: list[list[Segment]], caches: BatchCaches) -> Iterator[Outcome]:
        """Scores each row's children on top of it: the first child of each row, then the second of each, and so on.

        A turn's tokens are trimmed off before the next turn; where that cannot be, each turn works on copies.
        """
        order, turns = child_turns(children)
        if order != list(range(len(children))):
            caches.reorder(order)
        for batch in turns:
            if window.stopped():
                return
            window.batch = batch
            if len(batch) < caches.rows:
                caches.keep_first(len(batch))
            width = batch_width(batch)
            if caches.trimmable(width):
                yield from self._score_batch(window, batch, caches)
                caches.trim(width)
            else:
                yield from self._score_batch(window, batch, caches.copied())

    def _caches(self, batch: list[Segment], parent: BatchCaches | None = None, spare: BatchCaches | None = None) -> BatchCaches:
        return batch_caches(self._models, len(batch), batch_width(batch), not batch[0].children, parent, spare)

    # ------------------------------------------------------------------------------------------- calls of the model

    def _score_whole(self, window: ScoreWindow, batch: list[Segment], following: list[Segment] | None) -> Iterator[Outcome]:
        """Scores a batch by one call that keeps nothing. Sends the ``following`` one before the last scores of this one are read."""
        (model,) = self._models
        self._note(window, batch)
        call = self._calls.take(model, batch)
        meanwhile = self._calls.sending(model, following)
        yield from self._read_call(window, batch, [call.states], 0, call.tokens.shape[1], meanwhile)
        self._count(batch, call.tokens)

    def _note(self, window: ScoreWindow, batch: list[Segment]) -> None:
        self.progress.note_in_flight({row for row, _ in window.parts})
        self.progress.doing(f"scoring {len(batch)} rows of up to {max(len(segment.ids) for segment in batch)} tokens")

    def _count(self, batch: list[Segment], tokens: NDArray[np.int32]) -> None:
        """Counts a batch's tokens when it is scored."""
        self.progress.prefilled += sum(len(segment) - segment.pads for segment in batch)
        self.progress.padded += tokens.size
        limit_spare_memory()

    def _score_batch(self, window: ScoreWindow, batch: list[Segment], caches: BatchCaches) -> Iterator[Outcome]:
        """Runs a batch through the models on top of ``caches``, call by call; yields outcomes of the requests that it completes."""
        tokens = padded_tokens(batch)
        rows, width = tokens.shape
        self._note(window, batch)
        at = 0
        while at < width and not window.stopped():
            n = min(call_tokens(model, rows, width - at) for model in self._models)
            n = max(uncut(model.model, tokens[:, at:], n) for model in self._models)
            states = self._states(batch, tokens, at, n, caches)
            if self._static:  # row by row: the shapes in which a row's logits are computed must not depend on the other rows
                for row, segment in enumerate(batch):
                    yield from self._read_call(window, [segment], [state[row : row + 1] for state in states], at, n)
            else:
                yield from self._read_call(window, batch, states, at, n)
            at += n
            if at < width or batch[0].children:
                caches.evaluate()
        self._count(batch, tokens)

    def _states(self, batch: list[Segment], tokens: NDArray[np.int32], at: int, n: int, caches: BatchCaches) -> list[mx.array]:
        """Runs the columns from ``at`` to ``at + n`` of ``tokens`` [B, T]; returns each model's hidden states [B, n, H]."""
        columns, lengths = tokens[:, at : at + n], [len(segment) - at for segment in batch]
        pairs = zip(self._models, caches.by_model, strict=True)
        return [model.network(columns, own, lengths=lengths, read="states") for model, own in pairs]

    def _read_call(
        self,
        window: ScoreWindow,
        batch: list[Segment],
        states: list[mx.array],
        at: int,
        width: int,
        meanwhile: Callable[[], None] | None = None,
    ) -> Iterator[Outcome]:
        """Scores all targets that one call's ``states`` [B, width, H] predict; ``at``: its first column. meanwhile: see ``read_scores``."""
        reads = list(call_reads(batch, at, width))
        if not reads:
            return
        flat = [state.reshape(-1, state.shape[-1]) for state in states]
        rows = min(model.logit_rows for model in self._models) // len(self._models)
        networks = [model.network for model in self._models]
        index, targets = np.concatenate([one.at for one in reads]), np.concatenate([one.targets for one in reads])
        scores, divergences = read_scores(networks, flat, index, targets, rows, self._wanted, meanwhile)
        end = 0
        for one in reads:
            piece = slice(end, end + len(one.targets))
            end = piece.stop
            for owner in one.read.owners:
                yield from self._deliver(window, owner, scores[piece], None if divergences is None else divergences[piece])

    def _deliver(self, window: ScoreWindow, owner: Owner, scores: Scores, divergences: Divergence | None) -> Iterator[Outcome]:
        """Gives a passage its next scores; yields its row's outcome if they are the last."""
        number, passage = owner
        row = window.rows[number]
        row.add(passage, scores, divergences)
        self.progress.scored += len(scores.logprobs)
        if not row.left:
            yield self._outcome(row)

    def _outcome(self, row: PartialScores) -> Outcome:
        unread = [model.network.unread(row.request.images) for model in self._models]
        outcome = row.outcome(no_scores(self._wanted), unread)
        self.progress.prompt += sum(len(passage.ids) for passage in row.request.passages)
        self._room.done()
        return outcome
