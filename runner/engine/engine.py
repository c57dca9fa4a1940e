"""Token ids in, token ids and logprobs out: rows enter, decode together, and leave. Knows no text and no files.

Each turn admits what fits (a prefilled group joins the batch that decodes) and takes one decode step for all rows. When
memory runs out, rows start again from their prompts in smaller batches: their random streams begin anew, and so do they.

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
from ...kernels.sampling import draw
from ..core.errors import first_line
from ..core.requests import Failure, Generated, Outcome, Request, Sample, Sampling
from ..layers.kv_cache import Caches, forked, select
from ..models.device_memory import is_out_of_memory
from ..scheduler.admission import joining_rows, may_join
from ..scheduler.limits import Limits, Load
from ..scheduler.request_queue import RequestQueue
from .interface import FixedWeights, Progress
from .oom_backoff import MemoryBackoff
from .prefill import Prefilled, prefill
from .prefix_kv import Stems
from .setup import Setup
from .slots import Active, Slots, Stopper

CLEAR_STEPS = 512  # between two returns of the allocator's spare buffers to the system


class Engine(FixedWeights):
    """Runs requests through one model. ``eos`` are the ids that end a completion; ``stopper`` watches for stop strings."""

    def __init__(self, setup: Setup, eos: frozenset[int], stopper: Callable[[Sampling], Stopper]):
        self.progress = Progress()
        self._setup, self._stopper, self._room = setup, stopper, MemoryBackoff(setup.limits, setup.static)
        self._eos = np.array(sorted(eos), np.int32)
        self._slots = Slots(setup.limits.rows, setup.wanted.top, setup.wanted.stats, setup.wanted.tempered)
        self._order: NDArray[np.intp] = np.zeros(0, np.intp)  # slots, in the order of the batch's rows
        self._done: NDArray[np.bool_] = np.zeros(0, np.bool_)  # rows that have ended; those of a static batch wait for the others
        self._caches: Caches = []
        self._stems = Stems()
        self._entering: list[Request] = []  # taken from the backlog and not prefilled yet
        self._parked: Prefilled | None = None  # a prompt with more samples than the batch has room for
        self._counted: set[int] = set()  # rows that start again and whose prompt is counted already

    def run(self, next_window: Callable[[bool], list[Request] | None], stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Outcomes of all windows' requests (see ``RequestQueue``), in the order in which they finish; ends early when ``stopped``."""
        backlog = RequestQueue(next_window, self._stems.arranging(self._setup))
        while not stopped():
            found, why = None, ""
            try:
                found = self._turn(backlog)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                why = first_line(error)
            if why:  # the error is gone, and with its traceback the arrays that this held
                found = self._start_again(backlog, why)
            elif found:
                self._room.done()
            if found is None:
                return
            yield from found

    def renew(self) -> None:
        """Takes in that the model's weights are others now: no cache of the old ones stays. Nothing may be in flight."""
        assert not self._flying, "rows are in flight: they would see two policies"
        self._caches = []
        self._stems.clear()
        mx.clear_cache()
        self._setup = replace(self._setup.split_anew(), prefix_cache=None)  # what is kept on the disk is of the first weights

    @property
    def _flying(self) -> bool:
        return bool(len(self._order) or self._parked or self._entering)

    def _turn(self, backlog: RequestQueue) -> list[Outcome] | None:
        """Outcomes of the rows that end with this turn's step; None when there is nothing left to do."""
        self._drop()
        self._admit(backlog)
        return self._step() if len(self._order) else None

    # -------------------------------------------------------------------------------------------------- admission

    def _admit(self, backlog: RequestQueue) -> None:
        """Fills free slots from the parked group, else from one that is prefilled now."""
        if not may_join(self._setup.limits, len(self._order), self._setup.joins):
            return
        if self._parked is None:
            if not len(self._order):
                self.progress.doing("waiting for input")
            requests = backlog.take(self._setup.group_limits, self._load())
            if not requests:
                return
            self._entering = requests
            self.progress.flight({r.row for r in requests} | {self._slots.row(slot).request.row for slot in self._order})
            self.progress.doing(f"prefilling {len(requests)} rows of up to {max(len(r.prompt.ids) for r in requests)} tokens")
            bases, computed = self._stems.bases(self._setup, requests, backlog.prefix_of)
            self._parked = prefill(self._setup, requests, bases) if bases else prefill(self._setup, requests)
            self._stems.keep(backlog.kept_prefixes)
            self._entering = []
            self.progress.prompt += sum(len(r.prompt.ids) for r in requests if r.row not in self._counted)
            self.progress.prefilled += self._parked.tokens + computed
            self.progress.padded += self._parked.padded_tokens + computed
        self._join(self._parked, backlog.limits_left(self._setup.group_limits))
        if not self._parked.waiting:
            self._parked = None

    def _load(self) -> Load:
        rows = [self._slots.row(slot).request for slot in self._order]
        return Load(len(rows), max((row.reach for row in rows), default=0))

    def _join(self, group: Prefilled, limits: Limits) -> None:
        """As many of the group's waiting samples as ``limits`` have room for take slots; their caches join the batch."""
        free = joining_rows(limits, self._load(), (request.reach for request in group.requests))
        if not free:
            return
        now, later = group.waiting[:free], group.waiting[free:]
        rows, of, padded = [i for i, _ in now], len(group.requests), self._setup.padded
        caches = group.caches
        if later:
            caches = forked(caches, rows, of, padded)
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
        group.waiting = later  # last: a sample that has no slot yet waits, should memory run out before
        self._order = np.concatenate([self._order, np.array(slots, np.intp)])
        self._done = np.zeros(len(self._order), np.bool_)

    def _active(self, request: Request, sample: Sample, echo: Scores | None) -> Active:
        sampling = request.work.sampling
        seen = np.unique(request.prompt.ids) if sampling.repetition_penalty != 1.0 else request.prompt.ids[:0]
        stopper = self._stopper(sampling) if sampling.stop else None
        fault = None
        if echo is not None and np.isnan(echo.logprobs).any():
            fault = f"the model's logits for prompt token {int(np.isnan(echo.logprobs).argmax()) + 1} are NaN or all -inf"
        return Active(request, sample, echo, np.random.Philox(key=sample.seed), stopper, seen, fault)

    # ------------------------------------------------------------------------------------------------------ decode

    def _step(self) -> list[Outcome]:
        """One token for each row of the batch; outcomes of the rows that end with it."""
        slots, order, wanted = self._slots, self._order, self._setup.wanted
        self.progress.doing(f"decoding {len(order)} rows")
        logits = self._setup.network(mx.array(slots.last[order])[:, None], self._caches)[:, -1]
        parameters = slots.parameters(order, self._eos)
        drawn, scores = draw(logits, parameters, wanted.top, wanted.stats, wanted.tempered, wanted.kept, wanted.logprobs)
        slots.write(order, drawn, scores)
        self.progress.generated += int((~self._done).sum())
        self.progress.steps += 1
        if self.progress.steps % CLEAR_STEPS == 0:
            mx.clear_cache()
        self.progress.places += self._setup.limits.rows
        bad = np.isnan(scores.logprobs) | np.isnan(drawn.sampled)
        perhaps = bad | np.isin(drawn.ids, self._eos) | (slots.count[order] >= slots.limit[order]) | slots.special[order]
        at = np.flatnonzero(perhaps & ~self._done)
        found = [self._ended(int(order[i]), int(drawn.ids[i]), bool(bad[i])) for i in at]
        self._done[at] = [outcome is not None for outcome in found]
        return [outcome for outcome in found if outcome is not None]

    def _ended(self, slot: int, token: int, bad: bool) -> Outcome | None:
        """The outcome of a row that ends with ``token``, or None. An id that stops goes before a stop string, that before length."""
        row = self._slots.row(slot)
        sampling = row.sampling
        if bad or row.fault is not None:
            message = (
                row.fault or f"the model's logits for generated token {int(self._slots.count[slot]) - 1} are NaN, or all -inf or masked"
            )
            return Failure(row.request.row, None, row.sample.index, "generate", "NotANumber", message, "")
        matched = row.stopper.push(token) if row.stopper is not None else None
        finish, reason = "stop", None
        if token in self._eos and not sampling.ignore_eos:
            pass
        elif token in sampling.stop_token_ids:
            reason = str(token)
        elif matched is not None:
            reason = matched
        elif self._slots.count[slot] >= self._slots.limit[slot]:
            finish = "length"
        else:
            return None
        drawn, scores = self._slots.generated(slot)
        more = {"tempered_logprobs": drawn.tempered, "kept_ids": drawn.kept}
        return Generated(row.request.row, row.sample, drawn.ids, scores, drawn.sampled, finish, reason, row.echo, **more)  # pyright: ignore[reportArgumentType]

    def _drop(self) -> None:
        """Rows that are done leave before the next step; those of a static batch leave together."""
        leaving = self._done
        if not leaving.any() or (self._setup.static and not leaving.all()):
            return
        for slot in self._order[leaving]:
            self._slots.leave(int(slot))
        stay, rows = np.flatnonzero(~leaving), len(leaving)
        self._order, self._done = self._order[stay], self._done[stay]
        if len(stay):
            select(self._caches, stay.tolist(), rows, self._setup.padded)
        else:
            self._caches = []

    # ------------------------------------------------------------------------------------------------ out of memory

    def _start_again(self, backlog: RequestQueue, why: str) -> list[Outcome]:
        """What was under way goes back to the backlog, and batches become smaller; failures of a row that does not fit alone.

        A prefill costs its own group. Anything else costs the batch, whose caches may be changed by halves.
        """
        doing, load = self.progress.activity.now, self._load()
        prefilling, generated = bool(self._entering), int(self._slots.count[self._order].max(initial=0))
        lost = self._entering if prefilling else self._emptied()
        rows = load.rows + len(lost) if prefilling else sum(len(request.samples) for request in lost)
        self._entering = []
        self._stems.clear()
        apart = rows == 1 and backlog.shares_memory(lost[0])
        if rows > 1:
            self._room.halve(rows, max(load.longest, *(request.reach for request in lost)), doing, why)
        elif apart:
            self._room.free(doing, why, "the next rows are prefilled without sharing what they begin with")
        elif not (prefilling and self._room.halve_calls(lost[0].row, doing, why)):
            return self._given_up(lost[0], generated, why)
        self._setup = replace(self._setup, limits=self._room.limits)
        if self._setup.limits.rows == 1:  # a prompt's caches are not kept aside for its other samples
            new = {r.row: len(r.prompt.ids) for r in lost if r.row not in self._counted}
            self.progress.prompt += sum(new.values())
            self._counted.update(new)
            lost = [request.without(set(request.samples) - {index}) for request in lost for index in request.samples]
        backlog.put_back(lost, apart)
        return []

    def _emptied(self) -> list[Request]:
        """Takes the batch apart: requests for all samples that are not done, those that were to join it too."""
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
        self._counted.update(request.row for request, _ in left.values())
        return [request.without(set(request.samples) - samples) for request, samples in left.values()]

    def _given_up(self, request: Request, generated: int, why: str) -> list[Outcome]:
        """Failures of a row that does not fit even alone."""
        self._setup = replace(self._setup, limits=self._room.limits)
        self._room.give_up(why)
        message = (
            f"out of device memory with this row alone: {len(request.prompt.ids)} prompt tokens and {generated} generated of up to "
            f"{request.work.sampling.max_tokens} ({why}); shorten the prompt or lower sampling.max_tokens"
        )
        return [Failure(request.row, None, index, "generate", "OutOfMemory", message, "") for index in request.samples]
