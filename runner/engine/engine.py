"""Generates completions by continuous batching: rows enter the batch, decode together, and leave. Knows no text and no files.

Each turn admits a prefilled group if it fits, then takes one decode step for all rows. When memory runs out, rows start again from
their prompts in smaller batches. Their random streams start again too, so they draw the same tokens.

    batch   . . a b c d|x     one step: the newest token of each row goes in, the next comes out
            e f g h i j|x     a finished row leaves, its outcome goes out
            . . . k l m|x     a group joins where rows have left
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.logprobs import Scores
from ...kernels.sampling.draw import draw
from ..core.errors import first_line
from ..core.guide import Guide
from ..core.outcomes import Failure, Generated, Outcome
from ..core.requests import Request, Sample, Sampling
from ..layers.kv_cache import Caches, fork_caches, select
from ..models.device_memory import is_out_of_memory
from ..scheduler.admission import joining_rows, may_join
from ..scheduler.limits import Limits, Load
from ..scheduler.request_queue import RequestQueue
from .interface import FixedWeights
from .oom_backoff import MemoryBackoff
from .prefill import Prefilled, prefill
from .prefix_kv import PrefixKV
from .progress import Progress
from .setup import Setup
from .slots import Active, Slots, Stopper, step_masks

CLEAR_STEPS = 512  # decode steps after which the allocator returns its spare buffers to the system


class Engine(FixedWeights):
    """Runs requests through one model. ``eos``: ids that end a completion; ``stopper`` makes what watches for stop strings."""

    def __init__(self, setup: Setup, eos: frozenset[int], stopper: Callable[[Sampling], Stopper]):
        self.progress = Progress()
        self._setup, self._stopper, self._room = setup, stopper, MemoryBackoff(setup.limits, setup.static)
        self._eos = np.array(sorted(eos), np.int32)
        self._slots = Slots(setup.limits.rows, setup.wanted.top, setup.wanted.stats, setup.wanted.tempered)
        self._order: NDArray[np.intp] = np.zeros(0, np.intp)  # slots, in the order of the batch's rows
        self._done: NDArray[np.bool_] = np.zeros(0, np.bool_)  # rows that have ended; in a static batch they wait for the others
        self._caches: Caches = []
        self._prefixes = PrefixKV()
        self._entering: list[Request] = []  # taken from the queue and not prefilled yet
        self._parked: Prefilled | None = None  # a prefilled group with samples that have no slot yet
        self._counted: set[tuple[int, int]] = set()  # samples that start again, whose prompt is counted already

    def run(self, next_window: Callable[[bool], list[Request] | None], stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Yields outcomes of all windows' requests (see ``RequestQueue``) in the order they finish; ends early when ``stopped``."""
        queue = RequestQueue(next_window, self._prefixes.arranging(self._setup))
        while not stopped():
            outcomes, why = None, ""
            try:
                outcomes = self._turn(queue)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                why = first_line(error)
            if why:  # the error is gone, and with its traceback the arrays that it held
                outcomes = self._start_again(queue, why)
            elif outcomes:
                self._room.done()
            if outcomes is None:
                return
            yield from outcomes

    def renew(self) -> None:
        """Drops all that was computed with the old weights, after the model got new ones. Nothing may be in flight."""
        assert not self._in_flight, "rows are in flight: they would see two policies"
        self._caches = []
        self._prefixes.clear()
        mx.clear_cache()
        self._setup = replace(self._setup.split_anew(), prefix_cache=None)  # the folder's prefixes are of the first weights

    @property
    def _in_flight(self) -> bool:
        return bool(len(self._order) or self._parked or self._entering)

    def _turn(self, queue: RequestQueue) -> list[Outcome] | None:
        """Returns the outcomes of the rows that end with this turn's step; None when nothing is left to do."""
        self._drop()
        self._admit(queue)
        return self._step() if len(self._order) else None

    # -------------------------------------------------------------------------------------------------- admission

    def _admit(self, queue: RequestQueue) -> None:
        """Fills free slots from the parked group, else from a group that it prefills now."""
        if not may_join(self._setup.limits, len(self._order), self._setup.joins):
            return
        if self._parked is None:
            if not len(self._order):
                self.progress.doing("waiting for input")
            requests = queue.take(self._setup.group_limits, self._load())
            if not requests:
                return
            self._entering = requests
            self.progress.note_in_flight({r.row for r in requests} | {self._slots.row(slot).request.row for slot in self._order})
            self.progress.doing(f"prefilling {len(requests)} rows of up to {max(len(r.prompt.ids) for r in requests)} tokens")
            prefixes, computed_tokens = self._prefixes.for_group(self._setup, requests, queue.prefix_of)
            self._parked = prefill(self._setup, requests, prefixes) if prefixes else prefill(self._setup, requests)
            self._prefixes.keep(queue.kept_prefixes)
            self._entering = []
            self.progress.prompt += sum(len(r.prompt.ids) for r in requests if r.place not in self._counted)
            self.progress.prefilled += self._parked.tokens + computed_tokens
            self.progress.padded += self._parked.padded_tokens + computed_tokens
        self._join(self._parked, queue.limits_left(self._setup.group_limits))
        if not self._parked.waiting:
            self._parked = None

    def _load(self) -> Load:
        rows = [self._slots.row(slot).request for slot in self._order]
        return Load(len(rows), max((row.reach for row in rows), default=0))

    def _join(self, group: Prefilled, limits: Limits) -> None:
        """Gives slots to as many of the group's waiting samples as ``limits`` allow, and adds their caches to the batch."""
        free = joining_rows(limits, self._load(), (request.reach for request in group.requests))
        if not free:
            return
        now, later = group.waiting[:free], group.waiting[free:]
        rows, of, padded = [i for i, _ in now], len(group.requests), self._setup.features.padded
        caches = group.caches
        if later:
            caches = fork_caches(caches, rows, of, padded)
        else:
            select(caches, rows, of, padded)
        entering = [self._active(group.requests[i], sample, group.echoes[i]) for i, sample in now]
        if len(self._order):
            for mine, theirs in zip(self._caches, caches, strict=True):
                mine.extend(theirs)
        else:
            self._caches = caches
        slots = self._slots.free[: len(now)]
        for slot, row in zip(slots, entering, strict=True):
            self._slots.enter(slot, row)
        group.waiting = later  # set last: should memory run out before, the samples still wait
        self._order = np.concatenate([self._order, np.array(slots, np.intp)])
        self._done = np.zeros(len(self._order), np.bool_)

    def _active(self, request: Request, sample: Sample, echo: Scores | None) -> Active:
        sampling = request.work.sampling
        seen = np.unique(request.prompt.ids) if sampling.repetition_penalty != 1.0 else request.prompt.ids[:0]
        stopper = self._stopper(sampling) if sampling.stop else None
        fault = None
        if echo is not None and np.isnan(echo.logprobs).any():
            fault = f"the model's logits for prompt token {int(np.isnan(echo.logprobs).argmax()) + 1} are NaN or all -inf"
        guide = request.work.guidance.start() if request.work.guidance is not None else None
        return Active(request, sample, echo, np.random.Philox(key=sample.seed), stopper, guide, seen, fault)

    # ------------------------------------------------------------------------------------------------------ decode

    def _step(self) -> list[Outcome]:
        """Draws one token for each row of the batch; returns the outcomes of the rows that end with it."""
        slots, order, wanted = self._slots, self._order, self._setup.wanted
        self.progress.doing(f"decoding {len(order)} rows")
        logits = self._setup.network(mx.array(slots.last[order])[:, None], self._caches)[:, -1]
        guides = self._guides()
        if guides:
            mx.async_eval(logits)  # the model computes while the masks are made
        parameters = slots.parameters(order, self._eos, step_masks(guides, logits.shape[-1]) if guides else None)
        drawn, scores = draw(logits, parameters, wanted.top, wanted.stats, wanted.tempered, wanted.kept, wanted.logprobs)
        slots.write(order, drawn, scores)
        for at, guide in guides:
            if guide.error is None:
                guide.push(int(drawn.ids[at]))
        self.progress.generated += int((~self._done).sum())
        self.progress.steps += 1
        if self.progress.steps % CLEAR_STEPS == 0:
            mx.clear_cache()
        self.progress.slot_steps += self._setup.limits.rows
        bad = np.isnan(scores.logprobs) | np.isnan(drawn.sampled)
        may_end = bad | np.isin(drawn.ids, self._eos) | (slots.count[order] >= slots.limit[order]) | slots.special[order]
        at = np.flatnonzero(may_end & ~self._done)
        outcomes = [self._ended(int(order[i]), int(drawn.ids[i]), bool(bad[i])) for i in at]
        self._done[at] = [outcome is not None for outcome in outcomes]
        return [outcome for outcome in outcomes if outcome is not None]

    def _guides(self) -> list[tuple[int, Guide]]:
        """Returns the rows of the batch that a grammar holds, with their guides, without those that are done and wait for others."""
        at = np.flatnonzero(self._slots.guided[self._order] & ~self._done).tolist()
        return [(i, guide) for i in at if (guide := self._slots.row(int(self._order[i])).guide) is not None]

    def _ended(self, slot: int, token: int, bad: bool) -> Outcome | None:
        """Returns the outcome of a row if it ends with ``token``, else None. A stop id goes before a stop string, that before length."""
        row = self._slots.row(slot)
        sampling = row.sampling
        if bad or row.fault is not None:
            message = (
                row.fault or f"the model's logits for generated token {int(self._slots.count[slot]) - 1} are NaN, or all -inf or masked"
            )
            return Failure(row.request.row, None, row.sample.index, "generate", "NotANumber", message, "")
        if row.guide is not None and row.guide.error is not None:
            message = f"the grammar cannot go on at generated token {int(self._slots.count[slot]) - 1}: {row.guide.error}"
            return Failure(row.request.row, None, row.sample.index, "generate", "GrammarError", message, "")
        matched = row.stopper.push(token) if row.stopper is not None else None
        finish, reason, cut = "stop", None, False
        if token in self._eos and not sampling.ignore_eos:
            pass
        elif token in sampling.stop_token_ids:
            reason = str(token)
        elif matched is not None:
            reason, cut = matched, True
        elif self._slots.count[slot] >= self._slots.limit[slot]:
            finish = "length"
        else:
            return None
        drawn, scores = self._slots.generated(slot)
        complete = None if row.guide is None else row.guide.complete and not cut
        more = {"tempered_logprobs": drawn.tempered, "kept_ids": drawn.kept, "grammar_complete": complete}
        return Generated(row.request.row, row.sample, drawn.ids, scores, drawn.sampled, finish, reason, row.echo, **more)  # pyright: ignore[reportArgumentType]

    def _drop(self) -> None:
        """Removes the rows that are done; those of a static batch leave together."""
        leaving = self._done
        if not leaving.any() or (self._setup.static and not leaving.all()):
            return
        for slot in self._order[leaving]:
            self._slots.leave(int(slot))
        stay, rows = np.flatnonzero(~leaving), len(leaving)
        self._order, self._done = self._order[stay], self._done[stay]
        if len(stay):
            select(self._caches, stay.tolist(), rows, self._setup.features.padded)
        else:
            self._caches = []

    # ------------------------------------------------------------------------------------------------ out of memory

    def _start_again(self, queue: RequestQueue, why: str) -> list[Outcome]:
        """Puts the rows under way back into the queue and makes batches smaller. Returns failures of a row that does not fit alone.

        A failed prefill costs its own group. Any other failure costs the whole batch, whose caches may be half changed.
        """
        doing, load = self.progress.activity.now, self._load()
        prefilling, generated = bool(self._entering), int(self._slots.count[self._order].max(initial=0))
        lost = self._entering if prefilling else self._emptied()
        rows = load.rows + len(lost) if prefilling else sum(len(request.samples) for request in lost)
        self._entering = []
        self._prefixes.clear()
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

    def _emptied(self) -> list[Request]:
        """Empties the batch and the parked group; returns requests for all their samples that are not done."""
        left: dict[int, tuple[Request, set[int]]] = {}
        for slot, row in enumerate(self._slots.active):
            if row is not None:
                left.setdefault(id(row.request), (row.request, set()))[1].add(row.sample.index)
                self.progress.generated -= int(self._slots.count[slot])
                self._slots.leave(slot)
        if (parked := self._parked) is not None:
            for i, sample in parked.waiting:
                left.setdefault(id(parked.requests[i]), (parked.requests[i], set()))[1].add(sample.index)
        self._order, self._done, self._caches, self._parked = self._order[:0], self._done[:0], [], None
        self._counted.update((request.row, index) for request, _ in left.values() for index in request.samples)
        return [request.without(set(request.samples) - samples) for request, samples in left.values()]

    def _given_up(self, request: Request, generated: int, why: str) -> list[Outcome]:
        """Returns failures for all samples of a row that does not fit even alone."""
        self._setup = replace(self._setup, limits=self._room.limits)
        self._room.give_up(why)
        message = (
            f"out of device memory with this row alone: {len(request.prompt.ids)} prompt tokens and {generated} generated of up to "
            f"{request.work.sampling.max_tokens} ({why}); shorten the prompt or lower sampling.max_tokens"
        )
        return [Failure(request.row, None, index, "generate", "OutOfMemory", message, "") for index in request.samples]
