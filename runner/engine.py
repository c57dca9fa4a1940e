"""Token ids in, token ids and logprobs out: rows enter, decode together, and leave. Knows no text and no files.

Each turn admits what fits (a prefilled group joins the batch that decodes) and takes one decode step for all rows.

    batch   . . a b c d|x     one step: the newest token of each row goes in, the next comes out
            e f g h i j|x     a finished row leaves, its outcome goes out
            . . . k l m|x     a group joins where rows have left
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..kernels.logprobs import Scores
from ..kernels.sampling import draw
from .cache import Caches, forked, select
from .planner import Backlog, Load
from .prefill import Prefilled, Setup, prefill
from .records import Failure, Generated, Outcome, Request, Sample, Sampling
from .slots import Active, Slots, Stopper

CLEAR_STEPS = 512  # between two returns of the allocator's spare buffers to the system


@dataclass(slots=True)
class Progress:
    """Counts since the start, in tokens but for ``steps`` (of decoding) and ``places`` (rows x steps there was room for).

    ``prefilled`` are the tokens that went through the model in prefills, ``padded`` the same with pads. ``scored`` are tokens
    of passages that have got their logprob.
    """

    prompt: int = 0
    prefilled: int = 0
    padded: int = 0
    generated: int = 0
    scored: int = 0
    steps: int = 0
    places: int = 0
    now: str = "waiting for input"
    since: float = field(default_factory=monotonic)

    def doing(self, what: str) -> None:
        """Says what the engine does from now on; the heartbeat prints it when nothing else happens for long."""
        self.now, self.since = what, monotonic()


class Engine:
    """Runs requests through one model. ``eos`` are the ids that end a completion; ``stopper`` watches for stop strings."""

    def __init__(self, setup: Setup, eos: frozenset[int], stopper: Callable[[Sampling], Stopper]):
        self.progress = Progress()
        self._setup, self._stopper = setup, stopper
        self._eos = np.array(sorted(eos), np.int32)
        self._slots = Slots(setup.limits.rows, setup.wanted.top, setup.wanted.stats)
        self._order: NDArray[np.intp] = np.zeros(0, np.intp)  # slots, in the order of the batch's rows
        self._done: NDArray[np.bool_] = np.zeros(0, np.bool_)  # rows of a static batch that wait for the others
        self._caches: Caches = []
        self._parked: Prefilled | None = None  # a prompt with more samples than the batch has room for

    def run(self, next_window: Callable[[bool], list[Request] | None], stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Outcomes of all windows' requests (see ``Backlog``), in the order in which they finish; ends early when ``stopped``."""
        backlog = Backlog(next_window)
        while not stopped():
            self._admit(backlog)
            if not len(self._order):
                return
            yield from self._step()

    # -------------------------------------------------------------------------------------------------- admission

    def _admit(self, backlog: Backlog) -> None:
        """Fills free slots from the parked group, else from one that is prefilled now.

        A batch that decodes is joined when an eighth of its slots are free: each join copies its caches.
        """
        limits = self._setup.limits
        free = limits.rows - len(self._order)
        if len(self._order) and (not self._setup.joins or free < max(1, limits.rows // 8)):
            return
        if self._parked is None:
            requests = backlog.take(self._setup.group_limits, self._load())
            if not requests:
                return
            self.progress.doing(f"prefilling {len(requests)} rows of up to {max(len(r.prompt.ids) for r in requests)} tokens")
            self._parked = prefill(self._setup, requests)
            self.progress.prompt += sum(len(r.prompt.ids) for r in requests)
            self.progress.prefilled += self._parked.tokens
            self.progress.padded += self._parked.padded_tokens
        self._join(self._parked, free)
        if not self._parked.waiting:
            self._parked = None

    def _load(self) -> Load:
        rows = [self._slots.row(slot).request for slot in self._order]
        return Load(len(rows), max((row.reach for row in rows), default=0))

    def _join(self, group: Prefilled, free: int) -> None:
        """As many of the group's waiting samples as there is room for take slots; their caches join the batch."""
        longest = max(self._load().longest, *(request.reach for request in group.requests))
        free = min(free, self._setup.group_limits.most_rows(longest) - len(self._order))
        if free <= 0:
            return
        now, group.waiting = group.waiting[:free], group.waiting[free:]
        rows, of, padded = [i for i, _ in now], len(group.requests), self._setup.padded
        caches = group.caches
        if group.waiting:
            caches = forked(caches, rows, of, padded)
        else:
            select(caches, rows, of, padded)
        slots = self._slots.free[: len(now)]
        for slot, (i, sample) in zip(slots, now, strict=True):
            self._slots.enter(slot, self._active(group.requests[i], sample, group.echoes[i]))
        if len(self._order):
            for mine, theirs in zip(self._caches, caches, strict=True):
                mine.extend(theirs)
        else:
            self._caches = caches
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

    def _step(self) -> Iterator[Outcome]:
        """One token for each row of the batch; outcomes of the rows that end with it."""
        slots, order, wanted = self._slots, self._order, self._setup.wanted
        self.progress.doing(f"decoding {len(order)} rows")
        logits: mx.array = self._setup.model(mx.array(slots.last[order])[:, None], cache=self._caches)[:, -1]
        ids, scores, sampled = draw(logits, slots.parameters(order, self._eos), wanted.top, wanted.stats)
        slots.write(order, ids, scores, sampled)
        self.progress.generated += int((~self._done).sum())
        self.progress.steps += 1
        if self.progress.steps % CLEAR_STEPS == 0:
            mx.clear_cache()
        self.progress.places += self._setup.limits.rows
        bad = np.isnan(scores.logprobs) | np.isnan(sampled)
        perhaps = bad | np.isin(ids, self._eos) | (slots.count[order] >= slots.limit[order]) | slots.special[order]
        leaving = np.zeros(len(order), np.bool_)
        for at in np.flatnonzero(perhaps & ~self._done):
            outcome = self._ended(int(order[at]), int(ids[at]), bool(bad[at]))
            if outcome is not None:
                leaving[at] = True
                yield outcome
        self._drop(leaving)

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
        ids, scores, sampled = self._slots.generated(slot)
        return Generated(row.request.row, row.sample, ids, scores, sampled, finish, reason, row.echo)

    def _drop(self, leaving: NDArray[np.bool_]) -> None:
        """Rows that are done leave at once; those of a static batch leave together."""
        if not leaving.any():
            return
        if self._setup.static:
            self._done |= leaving
            leaving = np.full(len(leaving), self._done.all())
            if not leaving.any():
                return
        for slot in self._order[leaving]:
            self._slots.leave(int(slot))
        stay = np.flatnonzero(~leaving)
        if len(stay):
            select(self._caches, stay.tolist(), len(leaving), self._setup.padded)
        else:
            self._caches = []
        self._order, self._done = self._order[stay], self._done[stay]
