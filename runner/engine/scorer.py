"""Logprobs of given tokens: requests in, scores of their passages out. Knows no text, no files and no job.

A window's passages become segments (``prefixes``), a batch of which is one call: fed behind nothing, or on top of the caches
that their parents have left. Pads stand on the right, where no real token sees them.

    parent   a b c d      children   a b c d|x .        plain caches, a copy a row; or the one copy, where the kernel for the
                                     a b c d|y z        CPU computes the layers and nothing stands on the children

When memory runs out, what a window has not finished is planned anew, in smaller batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.divergence import Divergence
from ...kernels.logprobs import Scores
from ..core.errors import first_line
from ..core.requests import Failure, Outcome, ScoreRequest
from ..layers.kv_cache import Caches, evaluate_caches, forked, fresh, passes, passing, select, trim, trimmable, widened
from ..layers.state_scores import read_scores
from ..models.device_memory import is_out_of_memory
from ..scheduler.prefix_tree import Owner, PassageRead, Segment, bucket_length, forest, passage_input
from ..scheduler.score_batches import child_turns, fixed_batches, scoring_limits, segment_batches
from .interface import Progress
from .oom_backoff import MemoryBackoff
from .partial_scores import PartialScores
from .prefill import chunk
from .setup import Setup


@dataclass(slots=True)
class _Rows:
    """Each model's caches, of ``rows`` rows that are equally long; None where a call behind nothing leaves nothing."""

    caches: list[Caches | None]
    rows: int
    kept: bool = True  # whether they hold what has been fed, and not only what stood there before

    @property
    def held(self) -> list[Caches]:
        """Of those that there are."""
        return [caches for caches in self.caches if caches is not None]

    @property
    def every(self) -> Caches:
        """All models' caches."""
        return [cache for caches in self.held for cache in caches]

    def keep(self, rows: int) -> None:
        """Drops all but the first ``rows``."""
        for caches in self.held:
            select(caches, list(range(rows)), self.rows, padded=False)
        self.rows = rows


class Scorer:
    """Scores requests with one model, and holds it against a ``reference`` model where there is one.

    The reference is fed the same batches, so both have to allow what one relies on.
    """

    def __init__(self, setup: Setup, reference: Setup | None = None):
        self.progress = Progress()
        self._models = [setup] if reference is None else [setup, reference]
        self._wanted, self._static = setup.wanted, setup.static
        self._right_padded = all(model.right_padded for model in self._models)
        self._shared = not setup.static and self._right_padded and all(model.shared for model in self._models)
        limits = scoring_limits(setup.limits, self._right_padded)
        self._room = MemoryBackoff(limits, setup.static)
        self._batch: list[Segment] = []  # what is fed
        self._apart = not self._shared  # nothing is shared within this window

    def run(
        self, next_window: Callable[[bool], list[ScoreRequest] | None], stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Outcome]:
        """Outcomes of all windows' requests, each as soon as its last token is scored; ends early when ``stopped``.

        ``next_window(wait)`` gives the next window's requests, None when there are no more.
        """
        while not stopped():
            self.progress.doing("waiting for input")
            window = next_window(True)
            if window is None:
                return
            yield from self._window(window, stopped)

    def _window(self, requests: list[ScoreRequest], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        opened, self._apart = [PartialScores.of(request) for request in requests], not self._shared
        yield from (self._outcome(row) for row in opened if not row.left)
        while opened := [row for row in opened if not row.done]:
            why, self._batch = "", []
            try:
                yield from self._feed_window(opened, stopped)
            except Exception as error:
                if not (self._batch and is_out_of_memory(error)):
                    raise
                why = first_line(error)
            if not why:
                return
            yield from self._start_again(opened, why)  # the error is gone, and with its traceback the arrays that this held

    def _start_again(self, opened: list[PartialScores], why: str) -> Iterator[Outcome]:
        """Makes batches smaller and lets all begin anew that is not done; failures of the rows that do not fit alone.

        One passage that stands on what is shared is not alone yet: the rest of the window then shares nothing.
        """
        batch, doing = self._batch, self.progress.now
        first, too_large = batch[0], set[int]()
        if len(batch) > 1:
            self._room.halve(len(batch), max(segment.longest for segment in batch), doing, why)
        elif first.start or first.children:
            self._apart = True
            self._room.free(doing, why, "the next rows are scored without sharing what they have in common")
        else:
            too_large = {own[0] for part in first.reads if len(passage_input(part.passage)) == len(first.ids) for own in part.owners}
            if self._room.halve_calls(opened[min(too_large)].request.row, doing, why):
                too_large = set[int]()
        self._models = [replace(model, limits=self._room.limits) for model in self._models]
        for number, row in enumerate(opened):
            if row.done:
                continue
            self.progress.scored -= row.begin_again()
            if number in too_large:
                row.done = True
                self._room.give_up(why)
                found = f"out of device memory with this row alone: {row.request.reach} tokens ({why})"
                yield Failure(row.request.row, None, 0, "score", "OutOfMemory", f"{found}; shorten it, or lower score.context", "")

    # ------------------------------------------------------------------------------------------------------- feeding

    def _feed_window(self, opened: list[PartialScores], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        requests = [row.request for row in opened]
        self.progress.doing(f"planning {len(requests)} rows")
        if self._static:
            yield from self._feed_lone(requests, opened, stopped)
        else:
            yield from self._feed_all(forest(requests, self._room.limits, not self._apart), None, 0.0, opened, stopped)

    def _feed_lone(self, requests: list[ScoreRequest], opened: list[PartialScores], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        """Feeds each passage by itself, in batches of fixed shapes."""
        for batch in fixed_batches(requests, self._room.limits.rows, bucket_length if self._right_padded else int):
            if stopped():
                return
            self._batch = batch
            yield from self._feed(batch, self._rows(None, None, batch), opened, stopped)

    def _feed_all(
        self, segments: list[Segment], base: _Rows | None, held: float, opened: list[PartialScores], stopped: Callable[[], bool]
    ) -> Iterator[Outcome]:
        """Feeds ``segments``, and all that stands behind them, on top of the one row of ``base``; ``held`` bytes are taken.

        The caches of one batch serve the next, where the tokens fed can be taken out of them again.
        """
        spare: _Rows | None = None
        for batch in segment_batches(segments, self._room.limits, not self._right_padded, held):
            if stopped():
                return
            self._batch = batch
            rows, spare = self._rows(base, spare, batch), None
            width = max(len(segment) for segment in batch)
            again = base is not None and rows.kept and trimmable(rows.every, max(segment.longest for segment in batch) - batch[0].start)
            yield from self._feed(batch, rows, opened, stopped)
            if len(batch) == 1 and batch[0].children:
                above = held + self._room.limits.kv(1, len(batch[0].ids))
                yield from self._feed_all(batch[0].children, rows, above, opened, stopped)
            elif batch[0].children:
                yield from self._feed_in_turn([stem.children for stem in batch], rows, opened, stopped)
            if again:
                trim(rows.every, width)
                spare = rows

    def _rows(self, base: _Rows | None, spare: _Rows | None, batch: list[Segment]) -> _Rows:
        """Caches for a batch: empty ones, or copies of the one row of ``base``; ``spare`` are such copies, if there are any.

        A batch that is one call and leaves nothing to others takes none where layers can do without.
        """
        rows, width = len(batch), max(len(segment) for segment in batch)
        alone = not batch[0].children and all(passes(model.model) for model in self._models)
        if alone and all(chunk(model, rows, width) == width for model in self._models):
            return _Rows([passing(caches) for caches in ([None] * len(self._models) if base is None else base.caches)], rows, kept=False)
        if base is None:
            return _Rows([fresh(model.model, rows, padded=False) for model in self._models], rows)
        if spare is None or spare.rows < rows:
            return _Rows([widened(caches, rows) for caches in base.held], rows)
        spare.keep(rows)
        return spare

    def _feed_in_turn(
        self, children: list[list[Segment]], rows: _Rows, opened: list[PartialScores], stopped: Callable[[], bool]
    ) -> Iterator[Outcome]:
        """Feeds each row's children on top of it: the first of each row, then the second of each, and so on.

        A turn's tokens are taken out again before the next; where that cannot be, each turn has caches of its own.
        """
        order, turns = child_turns(children)
        if order != list(range(len(children))):
            for caches in rows.held:
                select(caches, order, rows.rows, padded=False)
        for members in turns:
            if stopped():
                return
            self._batch = members
            if len(members) < rows.rows:
                rows.keep(len(members))
            width = max(len(segment) for segment in members)
            if trimmable(rows.every, width):
                yield from self._feed(members, rows, opened, stopped)
                trim(rows.every, width)
            else:
                copies: list[Caches | None] = [forked(caches, list(range(rows.rows)), rows.rows, padded=False) for caches in rows.held]
                yield from self._feed(members, _Rows(copies, rows.rows), opened, stopped)

    def _feed(self, members: list[Segment], rows: _Rows, opened: list[PartialScores], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        """Feeds a batch on top of ``rows``, call by call; outcomes of the requests that it ends."""
        width = max(len(segment) for segment in members)
        tokens = np.zeros((len(members), width), np.int32)
        for row, segment in zip(tokens, members, strict=True):
            row[: len(segment)] = segment.ids[segment.start :]
        self.progress.flight({opened[own[0]].request.row for segment in members for part in segment.reads for own in part.owners})
        self.progress.doing(f"scoring {len(members)} rows of up to {max(len(segment.ids) for segment in members)} tokens")
        at = 0
        while at < width and not stopped():
            n = min(chunk(model, len(members), width - at) for model in self._models)
            part = mx.array(tokens[:, at : at + n])
            lengths = [len(segment) - at for segment in members]
            states = [
                model.network(part, caches, lengths=lengths, read="states") for model, caches in zip(self._models, rows.caches, strict=True)
            ]
            if self._static:  # each by itself: the shapes that its logits are computed in are no matter of its mates
                for row, segment in enumerate(members):
                    yield from self._read([segment], [state[row : row + 1] for state in states], at, n, opened)
            else:
                yield from self._read(members, states, at, n, opened)
            at += n
            if at < width or members[0].children:
                evaluate_caches(rows.every)
        self.progress.prefilled += sum(len(segment) - segment.pads for segment in members)
        self.progress.padded += tokens.size
        mx.clear_cache()

    # ------------------------------------------------------------------------------------------------------- reading

    def _read(self, members: list[Segment], states: list[mx.array], at: int, width: int, opened: list[PartialScores]) -> Iterator[Outcome]:
        """Scores what is asked for at ``width`` tokens from ``at``, for whomever it is; outcomes of the requests that it ends."""
        found: list[tuple[PassageRead, int]] = []
        index: list[NDArray[np.intp]] = []
        targets: list[NDArray[np.int32]] = []
        for row, segment in enumerate(members):
            begin = segment.start + at
            end = min(begin + width, len(segment.ids))
            for part in segment.reads:
                passage = part.passage
                first, last = np.searchsorted(passage.positions, (begin + 1, end + 1))
                if first < last:
                    positions = passage.positions[first:last]
                    index.append(row * width + positions.astype(np.intp) - 1 - begin)
                    targets.append(passage.ids[positions])
                    found.append((part, int(last - first)))
        if not found:
            return
        flat = [state.reshape(-1, state.shape[-1]) for state in states]
        rows = min(model.logit_rows for model in self._models) // len(self._models)
        networks = [model.network for model in self._models]
        scores, divergences = read_scores(networks, flat, np.concatenate(index), np.concatenate(targets), rows, self._wanted)
        end = 0
        for part, count in found:
            piece = slice(end, end + count)
            end += count
            for owner in part.owners:
                yield from self._give(opened, owner, scores[piece], None if divergences is None else divergences[piece])

    def _give(self, opened: list[PartialScores], owner: Owner, scores: Scores, divergences: Divergence | None) -> Iterator[Outcome]:
        row = opened[owner[0]]
        row.add(owner[1], scores, divergences)
        self.progress.scored += len(scores.logprobs)
        if not row.left:
            yield self._outcome(row)

    def _outcome(self, row: PartialScores) -> Outcome:
        outcome = row.outcome(self._wanted.nothing, len(self._models) > 1)
        self.progress.prompt += sum(len(passage.ids) for passage in row.request.passages)
        self._room.done()
        return outcome
