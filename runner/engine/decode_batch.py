"""The rows that decode together: their slots, their caches, and the step that is under way. Knows no queue and no prefill.

Ahead (Metal, CUDA): a step is sent before the one before it is read, so that the device has work while Python looks at tokens. The ids
that a step draws stay on the device and go into the next one.

    device    step 1 | step 2 | step 3 | …
    host        send 2, read 1 | send 3, read 2 | …

A row that ends with step t has then taken part in step t + 1; that token is left unread. A row that reaches its limit is known before.
Where a draw depends on the tokens before it (penalties, grammars), the forward pass is sent, then step t is read, then the draw is sent.

mlx lets the host wait in its sending while more than ten command buffers are out. That is less than a step of a large network: the host
is free again only near the step's end. So a step is sent in two halves. Behind the first the host reads tokens, behind the second it
builds the next step.

mlx writes new keys into a cache in place only if nothing else holds its memory; what attention in flight still reads, it copies first. Ten
command buffers are more than a step of a small network. So where the caches are large, a step is sent when the forward pass before it is
over, while the device still draws from that one's logits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels.sampling.draw import Launched, launch
from ..core.errors import RowError
from ..core.guide import Guide
from ..core.images import FIRST_IMAGE_ID
from ..core.outcomes import Failure, Generated, Outcome
from ..core.progress import Progress
from ..layers.kv_cache import Caches, midway_array, select
from ..models.device_memory import limit_spare_memory
from ..ranks.lockstep import shared_draw
from ..scheduler.admission import may_leave
from ..scheduler.limits import Load
from .setup import Setup
from .slots import Active, Index, Slots, step_masks

COPIED_BYTES = 64 << 20  # of caches that may be copied in a step: a GPU needs less than a millisecond for it
CLEAR_STEPS = 512  # decode steps after which the allocator returns its spare buffers to the system


@dataclass(slots=True)
class _Sent:
    """A step that the device computes: the slots of its rows [B], and their draw. passed: known once the forward pass is over."""

    order: Index
    launched: Launched
    passed: mx.array | None


class DecodeBatch:
    """The batch that decodes. ``eos``: ids that end a completion."""

    def __init__(self, setup: Setup, eos: frozenset[int], progress: Progress):
        wanted = setup.wanted
        # Ahead, a row that has left keeps its slot until its last step is read, while another row has its place in the batch.
        self._slots = Slots(setup.limits.rows * (1 + setup.ahead), wanted.top, wanted.stats, wanted.tempered)
        self._eos, self._progress = np.array(sorted(eos), np.int32), progress
        self._order: NDArray[np.intp] = np.zeros(0, np.intp)  # slots, in the order of the batch's rows
        self._tokens = mx.zeros(0, mx.int32)  # the newest token of each of these rows
        self._ends_in_picture = False  # one of them is a picture's: the prompt that it ends has just joined
        self._caches: Caches = []
        self._unread = setup.network.unread
        self._sent: _Sent | None = None
        self._rows_sent = 0, 0  # rows of the last two steps
        self._left: list[int] = []  # slots of rows that have left, which the step under way still holds
        self._outcomes: list[Outcome] = []

    def __len__(self) -> int:
        """Counts the rows."""
        return len(self._order)

    @property
    def busy(self) -> bool:
        """Returns True while there are rows, or a step that is not read."""
        return bool(len(self._order)) or self._sent is not None

    @property
    def load(self) -> Load:
        """Returns the rows, and the length that the longest of them can become, or has: one that has ended may be longer."""
        return Load(len(self._order), max(int(self._slots.reach[self._order].max(initial=0)), self._width))

    @property
    def _width(self) -> int:
        """Returns the columns of the caches when the next step is sent."""
        return int((self._slots.prompt + self._slots.sent)[self._order].max(initial=0))

    @property
    def rows_under_way(self) -> set[int]:
        """Returns the input rows that have begun and not ended."""
        return {row.request.row for _, row in self._slots.under_way}

    @property
    def rows_computed(self) -> int:
        """Counts the rows of the steps that may be under way; some of them may have ended."""
        return max(self._rows_sent)

    @property
    def longest_completion(self) -> int:
        """Counts the tokens of the longest completion so far."""
        return int(self._slots.count[self._order].max(initial=0))

    def take_outcomes(self) -> list[Outcome]:
        """Returns the outcomes of the rows that have ended, each once."""
        taken, self._outcomes = self._outcomes, []
        return taken

    def join(self, rows: Sequence[Active], caches: Caches) -> None:
        """Takes in new rows with their ``caches``, which hold all but the last token of their prompts."""
        if len(self._order):
            for mine, theirs in zip(self._caches, caches, strict=True):
                mine.extend(theirs)
        else:
            self._caches, self._rows_sent = caches, (0, 0)
        slots = self._slots.free[: len(rows)]
        for slot, row in zip(slots, rows, strict=True):
            self._slots.enter(slot, row)
        ends = np.array([row.request.prompt.ids[-1] for row in rows], np.int32)
        self._ends_in_picture = self._ends_in_picture or bool((ends >= FIRST_IMAGE_ID).any())
        prompt_ends = mx.array(ends)
        self._tokens = mx.concatenate([self._tokens, prompt_ends]) if len(self._order) else prompt_ends
        self._order = np.concatenate([self._order, np.array(slots, np.intp)])

    def drop(self, setup: Setup) -> None:
        """Removes the rows that need no further step; those of a static batch leave together."""
        order, slots = self._order, self._slots
        leaving = slots.done[order] | (slots.sent[order] >= slots.limit[order])
        if not leaving.any() or not may_leave(leaving, static=setup.static, lazily=setup.ahead and not self._outgrown(setup)):
            return
        gone = order[leaving].tolist()
        if self._sent is None:
            self._free(gone)
        else:
            self._left += gone
        stay = np.flatnonzero(~leaving)
        self._order = order[stay]
        if len(stay):
            self._tokens = self._tokens[mx.array(stay.astype(np.int32))]
            select(self._caches, stay.tolist(), len(leaving), setup.features.padded)
        else:
            self._tokens, self._caches = mx.zeros(0, mx.int32), []

    def _outgrown(self, setup: Setup) -> bool:
        """Returns True when rows that have ended make the caches wider than any row can become, and larger than their limit."""
        limits, longest = setup.limits, int(self._slots.reach[self._order].max())
        return self._width > longest and limits.kv(len(self._order), self._width) > limits.kv_bytes

    def step(self, setup: Setup) -> None:
        """Sends the next step of all rows, and reads the one before; where nothing runs ahead, reads the one it has sent."""
        before, self._sent = self._sent, None
        if len(self._order):
            self._progress.doing(f"decoding {len(self._order)} rows")
            before = self._send(setup, before)
        if before is not None:
            self._read(before)
        if not setup.ahead and self._sent is not None:
            sent, self._sent = self._sent, None
            self._read(sent)

    def _send(self, setup: Setup, before: _Sent | None) -> _Sent | None:
        """Sends a step. Returns ``before`` if it is still unread."""
        slots, order, wanted = self._slots, self._order, setup.wanted
        # Ids that the host has anyway go as NumPy's: mlx would wake a thread to give them another shape.
        read = self._ends_in_picture or not setup.ahead
        tokens = np.array(self._tokens)[:, None] if read else self._tokens[:, None]
        logits, passed = setup.network(tokens, self._caches), None
        self._ends_in_picture = False
        if setup.ahead and self._cached_bytes(setup) > COPIED_BYTES:
            passed = logits[0, -1, 0] + 0  # not a view: that would hold all logits
            if before is not None and before.passed is not None:
                mx.eval(before.passed)
        if before is not None and slots.follows[order].any():
            mx.async_eval(logits)  # the model computes while the tokens before are looked at
            self._read(before)
            before = None
        elif before is not None and self._send_half():
            self._read(before)
            before = None
        if passed is not None:
            mx.async_eval(passed)
        guides = self._guides()
        if guides:
            mx.async_eval(logits)  # and while the masks are made
        parameters = slots.parameters(order, self._eos, step_masks(guides, logits.shape[-1]) if guides else None)
        launched = launch(logits, parameters, wanted.top, wanted.stats, wanted.tempered, wanted.kept, wanted.logprobs)
        launched = shared_draw(launched, setup.ranks)
        slots.sent[order] += 1
        self._rows_sent = self._rows_sent[1], len(order)
        self._tokens, self._sent = launched.ids, _Sent(order, launched, passed)
        self._progress.steps += 1
        self._progress.slot_steps += setup.limits.rows
        if self._progress.steps % CLEAR_STEPS == 0:
            limit_spare_memory()
        return before

    def _cached_bytes(self, setup: Setup) -> float:
        """Counts the bytes that the rows' caches take, or will."""
        load = self.load
        return setup.limits.kv(load.rows, load.longest)

    def _send_half(self) -> bool:
        """Sends a forward pass as far as a layer in the middle. Returns False where no cache tells where that is."""
        midway = midway_array(self._caches[: len(self._caches) // 2])
        if midway is not None:
            mx.async_eval(midway)
        return midway is not None

    def _read(self, sent: _Sent) -> None:
        """Reads a step's tokens, and notes the outcomes of the rows that end with them."""
        slots, order = self._slots, sent.order
        drawn, scores = sent.launched.read()
        going = np.flatnonzero(~slots.done[order])  # the others have ended before this step
        if len(going) < len(order):
            order, drawn, scores = order[going], drawn[going], scores[going]
        if len(order):
            slots.write(order, drawn, scores)
            for at in np.flatnonzero(slots.guided[order]).tolist():
                guide = slots.row(int(order[at])).guide
                if guide is not None and guide.error is None:
                    guide.push(int(drawn.ids[at]))
            self._progress.generated += len(order)
            bad = np.isnan(scores.logprobs) | np.isnan(drawn.sampled)
            ends = (drawn.ids[:, None] == self._eos).any(axis=1)
            may_end = bad | ends | (slots.count[order] >= slots.limit[order]) | slots.special[order]
            for at in np.flatnonzero(may_end).tolist():
                outcome = self._ended(int(order[at]), int(drawn.ids[at]), bool(bad[at]))
                if outcome is not None:
                    self._outcomes.append(outcome)
                    slots.done[order[at]] = True
        self._free(self._left)
        self._left = []

    def _free(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._slots.leave(slot)

    def _guides(self) -> list[tuple[int, Guide]]:
        """Returns the rows of the batch that a grammar holds, with their guides, without those that are done and wait for others."""
        if not self._slots.guided.any():
            return []
        at = np.flatnonzero(self._slots.guided[self._order] & ~self._slots.done[self._order]).tolist()
        return [(i, guide) for i in at if (guide := self._slots.row(int(self._order[i])).guide) is not None]

    def _ended(self, slot: int, token: int, bad: bool) -> Outcome | None:
        """Returns the outcome of a row if it ends with ``token``, else None. A stop id goes before a stop string, that before length."""
        row = self._slots.row(slot)
        sampling = row.sampling
        fault = row.fault
        if fault is None and row.request.prompt.ids[-1] >= FIRST_IMAGE_ID:  # a picture that the first step has read
            fault = self._unread(row.request.prompt.images)
        if fault is None and bad:
            which = f"generated token {int(self._slots.count[slot]) - 1}"
            fault = RowError("generate", f"the model's logits for {which} are NaN, or all -inf or masked", "NotANumber")
        if fault is not None:
            return Failure(row.request.row, None, row.sample.index, fault.stage, fault.name, str(fault), "")
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

    def empty(self) -> list[Active]:
        """Gives up all rows, with the step under way; returns those that have not ended, which must start again."""
        rows = list[Active]()
        for slot, row in self._slots.under_way:
            self._progress.generated -= int(self._slots.count[slot])
            rows.append(row)
        self._slots.clear()
        self._order, self._tokens, self._caches, self._sent, self._left = self._order[:0], mx.zeros(0, mx.int32), [], None, []
        self._rows_sent = 0, 0
        return rows

    def forget(self) -> None:
        """Drops what is left of the batch's arrays. There are no rows."""
        self._caches = []
