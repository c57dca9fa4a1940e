"""The rows that decode now: each has a slot, an object, and a line in tables of what changes with each step.

A row keeps its slot until it leaves, so tables are never filtered. A step reads and writes the tables by vectors of slots. Knows no
models, caches, text or grammars: a row with stop strings brings its own stopper, one under a grammar its guide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...kernels.logprobs import Scores
from ...kernels.sampling.draw import Drawn
from ...kernels.sampling.dry import DryRule, Repetition
from ...kernels.sampling.grammar_mask import WORD, Allowed, must_end
from ...kernels.sampling.logits_processors import Edits
from ...kernels.sampling.parameters import Parameters
from ...kernels.sampling.xtc import XTC
from ..core.errors import RowError
from ..core.guide import Guide
from ..core.images import FIRST_IMAGE_ID
from ..core.requests import Request, Sample, Sampling

DRAWS = 64  # uniforms drawn ahead for a row

Index = NDArray[np.intp]


class Stopper(Protocol):
    """Watches one completion for its stop strings."""

    def push(self, token: int) -> str | None:
        """Takes the next token; returns the stop string that it completes, or None."""
        ...


@dataclass(slots=True)
class Active:
    """A row that decodes: its request, its random stream, and what can stop it."""

    request: Request
    sample: Sample
    echo: Scores | None
    stream: np.random.Philox
    stopper: Stopper | None
    guide: Guide | None
    seen: NDArray[np.int32]  # the prompt's distinct ids, if a penalty needs them
    fault: RowError | None = None  # what is wrong with the prompt: the row ends with its first token
    repetition: Repetition | None = None  # what DRY penalises; made when the row gets its slot
    kept: list[NDArray[np.int32]] = field(default_factory=list[NDArray[np.int32]])  # for each token the ids that could be drawn

    @property
    def sampling(self) -> Sampling:
        """Returns the row's sampling parameters."""
        return self.request.work.sampling


class Slots:
    """Tables of ``rows`` slots; ``top``, ``stats`` and ``tempered`` say which figures are kept for each token.

    ``prompt`` [R] tokens of a row's prompt, ``sent`` [R] steps that it has taken part in, ``count`` [R] tokens of these that are read,
    ``limit`` [R]. ``reach`` [R] tokens that a row can have, with its prompt. ``done`` [R] marks rows whose outcome is out. ``special``
    [R] marks rows that must be looked at after each token: they have a guide, stop strings, stop ids of their own, or a fault.
    ``guided`` [R] marks those with a guide; ``follows`` [R] those whose draw depends on the tokens before it; ``draws`` [R] those with a
    temperature above 0.
    """

    def __init__(self, rows: int, top: int, stats: bool, tempered: bool = False):
        self.active: list[Active | None] = [None] * rows
        self.prompt, self.sent, self.count, self.limit, self.reach = (np.zeros(rows, np.int32) for _ in range(5))
        self.done, self.special, self.guided, self.follows, self.draws, self._edited = (np.zeros(rows, np.bool_) for _ in range(6))
        self._top, self._stats, self._tempered, self._width = top, stats, tempered, 0
        self._temperature, self._top_p, self._min_p, self._repetition, self._presence, self._frequency = (
            np.zeros(rows, np.float32) for _ in range(6)
        )
        self._typical_p, self._xtc_probability, self._xtc_threshold = (np.zeros(rows, np.float32) for _ in range(3))
        self._top_k = np.zeros(rows, np.int32)
        self._uniforms, self._xtc_uniforms = (np.zeros((rows, DRAWS), np.float32) for _ in range(2))
        self._tokens: dict[str, NDArray[np.generic]] = {}
        self._constant: tuple[Index, Parameters, bool] | None = None  # of the order that was asked for last: see ``parameters``
        self._widen(64)

    @property
    def free(self) -> list[int]:
        """Lists the free slots."""
        return [slot for slot, row in enumerate(self.active) if row is None]

    @property
    def under_way(self) -> list[tuple[int, Active]]:
        """Lists the slots whose rows have not ended, with these."""
        return [(slot, row) for slot, row in enumerate(self.active) if row is not None and not self.done[slot]]

    def row(self, slot: int) -> Active:
        """Returns the row that holds a slot."""
        row = self.active[slot]
        assert row is not None, f"slot {slot} is empty"
        return row

    def enter(self, slot: int, row: Active) -> None:
        """Gives a free slot to a row that has generated nothing yet."""
        s = row.sampling
        self.active[slot], self._constant = row, None
        self.sent[slot], self.count[slot], self.limit[slot], self.done[slot] = 0, 0, s.max_tokens, False
        self.prompt[slot], self.reach[slot] = len(row.request.prompt.ids), row.request.reach
        self.draws[slot], self._edited[slot] = s.temperature > 0, s.edits
        self.guided[slot] = row.guide is not None
        self.follows[slot] = row.guide is not None or s.penalties or s.dry_multiplier > 0
        self.special[slot] = bool(s.stop_token_ids) or row.stopper is not None or row.fault is not None or row.guide is not None
        self._temperature[slot], self._top_k[slot], self._top_p[slot], self._min_p[slot] = s.temperature, s.top_k, s.top_p, s.min_p
        self._typical_p[slot], self._xtc_probability[slot], self._xtc_threshold[slot] = s.typical_p, s.xtc_probability, s.xtc_threshold
        self._repetition[slot], self._presence[slot] = s.repetition_penalty, s.presence_penalty
        self._frequency[slot] = s.frequency_penalty
        if s.dry_multiplier > 0:
            rule = DryRule(s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_range, row.request.work.breakers)
            ids = row.request.prompt.ids
            row.repetition = Repetition(rule, ids[ids < FIRST_IMAGE_ID])

    def leave(self, slot: int) -> None:
        """Frees a slot."""
        self.active[slot] = None

    def clear(self) -> None:
        """Frees all slots."""
        self.active = [None] * len(self.active)

    def generated(self, slot: int) -> tuple[Drawn, Scores]:
        """Returns the N tokens that a slot's row has generated, and their scores."""
        n = int(self.count[slot])
        figures = {name: table[slot, :n].copy() for name, table in self._tokens.items()}
        ids, sampled, tempered = (figures.pop(name, None) for name in ("ids", "sampled", "tempered"))
        drawn = Drawn(ids, sampled, tempered, list(self.row(slot).kept) or None)  # pyright: ignore[reportArgumentType]
        return drawn, Scores(**figures)  # pyright: ignore[reportArgumentType]

    def parameters(self, order: Index, eos: NDArray[np.int32], allowed: Allowed | None = None) -> Parameters:
        """Returns the next step's parameters of the rows in ``order`` [B]. ``allowed``: the masks of those under a grammar."""
        if self._constant is None or self._constant[0] is not order:
            constant = self._constant_parameters(order)
            self._constant = order, constant, bool(constant.greedy.all()) and not self._edited[order].any()
        _, constant, same = self._constant  # same: no step changes anything, but for a grammar
        if same and allowed is None:
            return constant
        if constant.greedy.all():
            return replace(constant, edits=self._edits(order, eos, allowed), allowed=allowed)
        column = self.sent[order] % DRAWS
        for slot in order[self.draws[order] & (column == 0)]:
            raw = self.row(slot).stream.random_raw(DRAWS)
            self._uniforms[slot] = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
            if self._xtc_probability[slot] > 0:  # the lower bits of the same numbers, so that XTC takes none from the draws
                self._xtc_uniforms[slot] = (raw & np.uint64(2**24 - 1)).astype(np.float32) * np.float32(2.0**-24)
        xtc = self._xtc_probability[order]
        return replace(
            constant,
            uniforms=self._uniforms[order, column],
            xtc=XTC(xtc, self._xtc_threshold[order], self._xtc_uniforms[order, column]) if xtc.any() else None,
            edits=self._edits(order, eos, allowed),
            allowed=allowed,
        )

    def _constant_parameters(self, order: Index) -> Parameters:
        """Returns the parameters of the rows in ``order`` [B] without what each step has anew."""
        typical_p = self._typical_p[order]
        return Parameters(
            temperature=self._temperature[order],
            top_k=self._top_k[order],
            top_p=self._top_p[order],
            min_p=self._min_p[order],
            repetition=self._repetition[order],
            presence=self._presence[order],
            frequency=self._frequency[order],
            uniforms=np.zeros(len(order), np.float32),
            typical_p=typical_p if (typical_p < 1).any() else None,
        )

    def _edits(self, order: Index, eos: NDArray[np.int32], allowed: Allowed | None) -> Edits | None:
        masks: list[tuple[int, NDArray[np.int32], NDArray[np.float32]]] = []
        seen: list[tuple[int, NDArray[np.int32]]] = []
        generated: list[tuple[int, NDArray[np.int32]]] = []
        repeated: list[tuple[int, NDArray[np.int32], NDArray[np.float32]]] = []
        for at in np.flatnonzero(self._edited[order]).tolist():
            slot = int(order[at])
            row, n = self.row(slot), int(self.sent[slot])
            s = row.sampling
            if n < s.min_tokens:
                own = np.array(s.stop_token_ids, np.int32)
                stops = own if s.ignore_eos else np.concatenate([eos, own])
                if not must_end(allowed, at, stops):  # a text that is whole ends, however short it is
                    masks.append((at, stops, np.full(len(stops), -np.inf, np.float32)))
            if s.logit_bias:
                masks.append((at, np.array(list(s.logit_bias), np.int32), np.array(list(s.logit_bias.values()), np.float32)))
            if s.penalties:
                own_ids: NDArray[np.int32] = self._tokens["ids"][slot, :n]  # pyright: ignore[reportAssignmentType]
                generated.append((at, own_ids))
                if s.repetition_penalty != 1.0:
                    seen += [(at, row.seen), (at, own_ids)]
            if row.repetition is not None:
                repeated.append((at, *row.repetition.penalties()))
        if not (masks or generated or any(len(ids) for _, ids, _ in repeated)):
            return None
        add = np.concatenate([values for *_, values in masks] or [np.zeros(0, np.float32)])
        dry = np.concatenate([values for *_, values in repeated] or [np.zeros(0, np.float32)])
        flat = *_flat([(at, ids) for at, ids, _ in masks]), add, *_flat(seen), *_flat(generated)
        return Edits(*flat, *_flat([(at, ids) for at, ids, _ in repeated]), dry)

    def write(self, order: Index, drawn: Drawn, scores: Scores) -> None:
        """Appends a step's tokens and figures to the rows in ``order`` [B]."""
        column = self.count[order]
        if column.max() >= self._width:
            self._widen(2 * self._width)
        for figures in (drawn, scores):
            for name in figures.__slots__:
                if name in self._tokens and (values := getattr(figures, name)) is not None:
                    self._tokens[name][order, column] = values
        for slot, kept in zip(order.tolist(), drawn.kept or (), strict=False):
            if kept is not None:
                self.row(slot).kept.append(kept)
        following = np.flatnonzero(self.follows[order])
        for slot, token in zip(order[following].tolist(), drawn.ids[following].tolist(), strict=True):
            if (repetition := self.row(slot).repetition) is not None:
                repetition.push(token)
        self.count[order] += 1

    def _widen(self, width: int) -> None:
        rows = len(self.active)
        kinds: dict[str, tuple[type, tuple[int, ...]]] = {"ids": (np.int32, ())}
        kinds |= {"sampled": (np.float32, ()), "logprobs": (np.float32, ())}
        if self._tempered:
            kinds |= {"tempered": (np.float32, ())}
        if self._top:
            kinds |= {"top_ids": (np.int32, (self._top,)), "top_logprobs": (np.float32, (self._top,))}
        if self._stats:
            kinds |= {"ranks": (np.int32, ()), "entropies": (np.float32, ())}
        for name, (dtype, tail) in kinds.items():
            table = np.zeros((rows, width, *tail), dtype)
            if name in self._tokens:
                table[:, : self._width] = self._tokens[name]
            self._tokens[name] = table
        self._width = width


def step_masks(guides: Sequence[tuple[int, Guide]], width: int) -> Allowed | None:
    """Asks each guide which of ``width`` ids may come next; ``guides``: rows of the batch, ascending, with their guides.

    Rows that may draw any id have no mask, nor have those whose guide fails: they end with this step. None where no row has one.
    """
    bits, rows = np.zeros((len(guides), -(-width // WORD)), np.int32), list[int]()
    for row, guide in guides:
        if guide.fill(bits[len(rows)]) and guide.error is None:
            rows.append(row)
    return Allowed(np.array(rows, np.int32), bits[: len(rows)]) if rows else None


def _flat(parts: list[tuple[int, NDArray[np.int32]]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns pairs (row, its ids) as two arrays with one entry per id."""
    rows = np.repeat(np.array([at for at, _ in parts], np.int32), [len(ids) for _, ids in parts])
    return rows, np.concatenate([ids for _, ids in parts] or [np.zeros(0, np.int32)])
