"""Generates completions by continuous batching: rows enter the batch, decode together, and leave. Knows no text and no files.

Each turn prefills a part of a group, which joins once it is whole, then takes one decode step for all rows (decode_batch.py). So a long
prompt does not keep the others waiting. When memory runs out, rows start again from their prompts in smaller batches, or in deterministic
mode in the same batch. Their random streams start again too, so they draw the same tokens.

    batch   . . a b c d|x     one step: the newest token of each row goes in, the next comes out
            e f g h i j|x     a finished row leaves, its outcome goes out
            . . . k l m|x     a group joins where rows have left
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from ...kernels.logprobs import Scores
from ..core.errors import RowError, first_line, is_out_of_memory
from ..core.images import FIRST_IMAGE_ID
from ..core.outcomes import Failure, Outcome
from ..core.progress import Progress
from ..core.requests import Request, Sample, Sampling
from ..layers.kv_cache import fork_caches, select
from ..scheduler.admission import joining_rows, may_join
from ..scheduler.fixed_batch import FixedBatch
from ..scheduler.limits import Limits
from ..scheduler.request_queue import RequestQueue
from .decode_batch import DecodeBatch
from .interface import FixedWeights
from .oom_backoff import MemoryBackoff
from .prefill import ByCalls, Prefilled, Resumable, prefill_by_calls
from .prefix_kv import PrefixKV
from .setup import Setup
from .slots import Active, Stopper


@dataclass(slots=True)
class _Entering:
    """A group that is taken from the queue, and its prefill; ``at_work``: while the prefill computes, and after it has failed."""

    requests: list[Request]
    prefill: Resumable[Prefilled]
    at_work: bool = False

    def __str__(self) -> str:
        return f"prefilling {len(self.requests)} rows of up to {max(len(r.prompt.ids) for r in self.requests)} tokens"


class Engine(FixedWeights):
    """Runs requests through one model. ``eos``: ids that end a completion; ``stopper`` makes what watches for stop strings."""

    def __init__(self, setup: Setup, eos: frozenset[int], stopper: Callable[[Sampling], Stopper]):
        self.progress = Progress()
        self._setup, self._stopper, self._room = setup, stopper, MemoryBackoff(setup.limits, setup.ranks)
        self._batch = DecodeBatch(setup, eos, self.progress)
        self._prefixes = PrefixKV()
        self._entering: _Entering | None = None
        self._parked: Prefilled | None = None  # a prefilled group with samples that have no slot yet
        self._fixed: FixedBatch | None = None  # in deterministic mode: the batch under way
        self._counted: set[tuple[int, int]] = set()  # samples that start again, whose prompt is counted already

    def run(self, next_window: Callable[[bool], list[Request] | None], stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Yields outcomes of all windows' requests (see ``RequestQueue``) in the order they finish; ends early when ``stopped``."""
        queue = RequestQueue(next_window, self._prefixes.arranging(self._setup))
        while not stopped():
            going, why = True, ""
            try:
                going = self._turn(queue)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                why = first_line(error)
            outcomes = self._batch.take_outcomes()  # also of the rows that ended before memory ran out
            if self._fixed is not None:
                outcomes = self._fixed.new(outcomes)
            if outcomes:
                self._room.done()
            if why:  # the error is gone, and with its traceback the arrays that it held
                outcomes += self._start_again(queue, why)
            yield from outcomes
            if not going:
                return

    def renew(self) -> None:
        """Drops all that was computed with the old weights, after the model got new ones. Nothing may be in flight."""
        assert not self._in_flight, "rows are in flight: they would see two policies"
        self._batch.forget()
        self._prefixes.clear()
        mx.clear_cache()
        self._setup = replace(self._setup.split_anew(), prefix_cache=None)  # the folder's prefixes are of the first weights

    @property
    def _in_flight(self) -> bool:
        return bool(self._batch.busy or self._parked or self._entering)

    def _turn(self, queue: RequestQueue) -> bool:
        """Takes one step. Returns False when nothing is left to do."""
        self._batch.drop(self._setup)
        if len(self._batch) or not self._batch.busy:  # else a step is unread: input may wait for its outcomes
            self._admit(queue)
        if self._batch.busy:
            self._batch.step(self._setup)
            return True
        return self._entering is not None

    # -------------------------------------------------------------------------------------------------- admission

    def _admit(self, queue: RequestQueue) -> None:
        """Goes on with the prefill of a group, or begins one. Fills free slots from a group whose prefill is done."""
        if self._entering is None:
            if not may_join(self._setup.limits, len(self._batch), self._setup.joins):
                return
            if self._parked is None:
                self._entering = self._next_group(queue)
        if self._entering is not None:
            self._advance(self._entering, queue)
        if self._parked is not None:
            self._join(self._parked, queue.limits_left(self._setup.group_limits))
            if not self._parked.waiting:
                self._parked = None

    def _next_group(self, queue: RequestQueue) -> _Entering | None:
        """Takes a group from the queue; None where no row waits that fits. Its KV bytes count from now on."""
        if not self._batch.busy:
            self.progress.doing("waiting for input")
        if self._fixed is not None and self._fixed.repeats:
            requests, self._fixed.repeats = self._fixed.requests, False
        else:
            requests = queue.take(self._setup.group_limits, self._batch.load)
            if not requests:
                return None
            self._fixed = FixedBatch(requests, (self.progress.prompt, self.progress.generated)) if self._setup.static else None
        self.progress.note_in_flight({r.row for r in requests} | self._batch.rows_under_way)
        setup = self._setup.beside_decoding if len(self._batch) else self._setup
        return _Entering(requests, Resumable(self._prefill(setup, requests, queue)))

    def _prefill(self, setup: Setup, requests: list[Request], queue: RequestQueue) -> ByCalls[Prefilled]:
        """Prefills a group, after the shared prefixes that its prompts begin with."""
        prefixes, computed_tokens = yield from self._prefixes.for_group(setup, requests, queue.prefix_of)
        group = yield from prefill_by_calls(setup, requests, prefixes)
        group.tokens += computed_tokens
        group.padded_tokens += computed_tokens
        return group

    def _advance(self, group: _Entering, queue: RequestQueue) -> None:
        """Prefills as many tokens of a group as may come between two decode steps. A group that is done is parked."""
        self.progress.doing(str(group))
        group.at_work = True
        self._parked = group.prefill.advance(self._setup.prefill_tokens)
        group.at_work = False
        if self._parked is None:
            return
        self._entering = None
        self._prefixes.keep(queue.kept_prefixes)
        self.progress.prompt += sum(len(r.prompt.ids) for r in group.requests if r.place not in self._counted)
        self.progress.prefilled += self._parked.tokens
        self.progress.padded += self._parked.padded_tokens

    def _join(self, group: Prefilled, limits: Limits) -> None:
        """Gives slots to as many of the group's waiting samples as ``limits`` allow, and adds their caches to the batch."""
        free = joining_rows(limits, self._batch.load, (request.reach for request in group.requests))
        if not free:
            return
        now, later = group.waiting[:free], group.waiting[free:]
        rows, of, padded = [i for i, _ in now], len(group.requests), self._setup.features.padded
        caches = group.caches
        if later:
            caches = fork_caches(caches, rows, of, padded)
        else:
            select(caches, rows, of, padded)
        self._batch.join([self._active(group.requests[i], sample, group.echoes[i]) for i, sample in now], caches)
        group.waiting = later  # set last: should memory run out before, the samples still wait

    def _active(self, request: Request, sample: Sample, echo: Scores | None) -> Active:
        sampling = request.work.sampling
        words = request.prompt.ids < FIRST_IMAGE_ID
        seen = np.unique(request.prompt.ids[words]) if sampling.repetition_penalty != 1.0 else request.prompt.ids[:0]
        stopper = self._stopper(sampling) if sampling.stop else None
        fault = self._setup.network.unread(request.prompt.images)
        if fault is None and echo is not None and (bad := np.isnan(echo.logprobs) & words[1:]).any():
            fault = RowError("generate", f"the model's logits for prompt token {int(bad.argmax()) + 1} are NaN or all -inf", "NotANumber")
        guide = request.work.guidance.start() if request.work.guidance is not None else None
        return Active(request, sample, echo, np.random.Philox(key=sample.seed), stopper, guide, seen, fault)

    # ------------------------------------------------------------------------------------------------ out of memory

    def _start_again(self, queue: RequestQueue, why: str) -> list[Outcome]:
        """Puts the rows under way back into the queue and makes batches smaller. Returns failures of a row that does not fit alone.

        A failed prefill costs its own group. Any other failure costs the whole batch, whose caches may be half changed.
        """
        if self._fixed is not None:
            self._repeat(self._fixed, why)
            return []
        doing, load, decoding = self.progress.activity.now, self._batch.load, self._batch.rows_computed
        failed = self._entering if self._entering is not None and self._entering.at_work else None
        prefilling, generated = failed is not None, self._batch.longest_completion
        lost = self._emptied() if failed is None else failed.requests
        rows = load.rows + len(lost) if prefilling else max(decoding, sum(len(request.samples) for request in lost))
        self._entering = failed = None
        self._prefixes.clear()
        if not lost:  # one step ahead, a step may be under way whose rows have all ended
            self._room.free(doing, why, "all rows of this step had ended, and none is lost")
            return []
        unshared = rows == 1 and queue.shares_memory(lost[0])
        if rows > 1:
            self._room.halve(rows, max(load.longest, *(request.reach for request in lost)), doing, why)
        elif unshared:
            self._room.free(doing, why, "the next rows are prefilled without sharing what they begin with")
        elif not (prefilling and self._room.halve_calls(lost[0].row, doing, why)):
            return self._given_up(lost[0], generated, why)
        self._setup = replace(self._setup, limits=self._room.limits)
        if self._setup.limits.rows == 1:  # each sample prefills its prompt itself: no caches are kept for the others
            new = {r.place: len(r.prompt.ids) for r in lost if r.place not in self._counted}
            self.progress.prompt += sum(new.values())
            self._counted.update((request.row, index) for request in lost for index in request.samples)
            lost = [request.without(set(request.samples) - {index}) for request in lost for index in request.samples]
        queue.put_back(lost, unshared)
        return []

    def _repeat(self, batch: FixedBatch, why: str) -> None:
        """Lets the batch under way be computed again, as deterministic mode fixes it. Raises OutOfRoom at its second time."""
        doing = self.progress.activity.now
        self._batch.empty()
        self._parked = self._entering = None
        if batch.done:  # one step ahead, a step may be under way whose rows have all ended
            self._room.free(doing, why, "all rows of this step had ended, and none is lost")
            return
        self._room.repeat(batch.samples, doing, why)
        self.progress.prompt, self.progress.generated = batch.counts
        batch.repeats = True

    def _emptied(self) -> list[Request]:
        """Empties the batch and the group that is parked or enters; returns requests for all their samples that are not done."""
        left: dict[int, tuple[Request, set[int]]] = {}
        for row in self._batch.empty():
            left.setdefault(id(row.request), (row.request, set()))[1].add(row.sample.index)
        if (parked := self._parked) is not None:
            for i, sample in parked.waiting:
                left.setdefault(id(parked.requests[i]), (parked.requests[i], set()))[1].add(sample.index)
        self._parked = None
        self._counted.update((request.row, index) for request, _ in left.values() for index in request.samples)
        entering = [] if self._entering is None else self._entering.requests
        return [request.without(set(request.samples) - samples) for request, samples in left.values()] + entering

    def _given_up(self, request: Request, generated: int, why: str) -> list[Outcome]:
        """Returns failures for all samples of a row that does not fit even alone."""
        self._setup = replace(self._setup, limits=self._room.limits)
        self._room.give_up(why)
        message = (
            f"out of device memory with this row alone: {len(request.prompt.ids)} prompt tokens and {generated} generated of up to "
            f"{request.work.sampling.max_tokens} ({why}); shorten the prompt or lower sampling.max_tokens"
        )
        return [Failure(request.row, None, index, "generate", "OutOfMemory", message, "") for index in request.samples]
