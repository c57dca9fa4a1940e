"""The rows that decode now: one slot a row, one object a row, and tables with a line a slot for what changes each step.

A slot stays a row's own until it leaves, so nothing is filtered in lockstep; a step reads and writes the tables by
vectors of slots. Knows nothing of models, caches or text (a row with stop strings brings its own stopper).
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...kernels.logits_processors import Edits
from ...kernels.logprobs import Scores
from ...kernels.sampling import Drawn, Parameters
from ..core.requests import Request, Sample, Sampling

DRAWS = 64  # uniforms drawn ahead for a row

Index = NDArray[np.intp]


class Stopper(Protocol):
    """Watches one completion for its stop strings."""

    def push(self, token: int) -> str | None:
        """Takes the next token; the stop string that it completed, or None."""
        ...


@dataclass(slots=True)
class Active:
    """A row that decodes: what was asked, its random stream, what can stop it."""

    request: Request
    sample: Sample
    echo: Scores | None
    stream: np.random.Philox
    stopper: Stopper | None
    seen: NDArray[np.int32]  # the prompt's distinct ids, where a penalty looks at them
    fault: str | None = None  # what is wrong with its prompt: it ends with its first token
    kept: list[NDArray[np.int32]] = field(default_factory=list[NDArray[np.int32]])  # of each token the ids that could be drawn

    @property
    def sampling(self) -> Sampling:
        """The row's sampling parameters."""
        return self.request.work.sampling


class Slots:
    """Tables of ``rows`` slots; ``top``, ``stats`` and ``tempered`` say which figures are kept a token.

    ``count`` [R] tokens generated, ``last`` [R] the newest token (before the first: the prompt's last), ``limit`` [R].
    ``special`` [R] marks rows that need a look after each token: stop strings, stop ids of their own, a fault.
    """

    def __init__(self, rows: int, top: int, stats: bool, tempered: bool = False):
        self.active: list[Active | None] = [None] * rows
        self.count, self.limit, self.last = (np.zeros(rows, np.int32) for _ in range(3))
        self.special, self.sampled, self._edited = (np.zeros(rows, np.bool_) for _ in range(3))
        self._top, self._stats, self._tempered, self._width = top, stats, tempered, 0
        self._temperature, self._top_p, self._min_p, self._repetition, self._presence, self._frequency = (
            np.zeros(rows, np.float32) for _ in range(6)
        )
        self._top_k = np.zeros(rows, np.int32)
        self._uniforms = np.zeros((rows, DRAWS), np.float32)
        self._tokens: dict[str, NDArray[np.generic]] = {}
        self._widen(64)

    @property
    def free(self) -> list[int]:
        """Slots nobody holds."""
        return [slot for slot, row in enumerate(self.active) if row is None]

    def row(self, slot: int) -> Active:
        """The row that holds a slot."""
        row = self.active[slot]
        assert row is not None, f"slot {slot} is empty"
        return row

    def enter(self, slot: int, row: Active) -> None:
        """A row takes a free slot, with nothing generated yet."""
        s = row.sampling
        self.active[slot] = row
        self.count[slot], self.limit[slot], self.last[slot] = 0, s.max_tokens, row.request.prompt.ids[-1]
        self.sampled[slot], self._edited[slot] = s.temperature > 0, s.edits
        self.special[slot] = bool(s.stop_token_ids) or row.stopper is not None or row.fault is not None
        self._temperature[slot], self._top_k[slot], self._top_p[slot], self._min_p[slot] = s.temperature, s.top_k, s.top_p, s.min_p
        self._repetition[slot], self._presence[slot] = s.repetition_penalty, s.presence_penalty
        self._frequency[slot] = s.frequency_penalty

    def leave(self, slot: int) -> None:
        """Empties a slot."""
        self.active[slot] = None

    def generated(self, slot: int) -> tuple[Drawn, Scores]:
        """The N tokens that a slot's row has generated, and their scores."""
        n = int(self.count[slot])
        figures = {name: table[slot, :n].copy() for name, table in self._tokens.items()}
        ids, sampled, tempered = (figures.pop(name, None) for name in ("ids", "sampled", "tempered"))
        drawn = Drawn(ids, sampled, tempered, list(self.row(slot).kept) or None)  # pyright: ignore[reportArgumentType]
        return drawn, Scores(**figures)  # pyright: ignore[reportArgumentType]

    def parameters(self, order: Index, eos: NDArray[np.int32]) -> Parameters:
        """The next step's parameters of the rows in ``order`` [B]."""
        column = self.count[order] % DRAWS
        for slot in order[self.sampled[order] & (column == 0)]:
            raw = self.row(slot).stream.random_raw(DRAWS)
            self._uniforms[slot] = (raw >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return Parameters(
            temperature=self._temperature[order],
            top_k=self._top_k[order],
            top_p=self._top_p[order],
            min_p=self._min_p[order],
            repetition=self._repetition[order],
            presence=self._presence[order],
            frequency=self._frequency[order],
            uniforms=self._uniforms[order, column],
            edits=self._edits(order, eos),
        )

    def _edits(self, order: Index, eos: NDArray[np.int32]) -> Edits | None:
        masks: list[tuple[int, NDArray[np.int32], NDArray[np.float32]]] = []
        seen: list[tuple[int, NDArray[np.int32]]] = []
        said: list[tuple[int, NDArray[np.int32]]] = []
        for at in np.flatnonzero(self._edited[order]).tolist():
            slot = int(order[at])
            row, n = self.row(slot), int(self.count[slot])
            s = row.sampling
            if n < s.min_tokens:
                own = np.array(s.stop_token_ids, np.int32)
                stops = own if s.ignore_eos else np.concatenate([eos, own])
                masks.append((at, stops, np.full(len(stops), -np.inf, np.float32)))
            if s.logit_bias:
                masks.append((at, np.array(list(s.logit_bias), np.int32), np.array(list(s.logit_bias.values()), np.float32)))
            if s.penalties:
                generated: NDArray[np.int32] = self._tokens["ids"][slot, :n]  # pyright: ignore[reportAssignmentType]
                said.append((at, generated))
                if s.repetition_penalty != 1.0:
                    seen += [(at, row.seen), (at, generated)]
        if not (masks or said):
            return None
        add = np.concatenate([values for *_, values in masks] or [np.zeros(0, np.float32)])
        return Edits(*_flat([(at, ids) for at, ids, _ in masks]), add, *_flat(seen), *_flat(said))

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
        self.last[order] = drawn.ids
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


def _flat(parts: list[tuple[int, NDArray[np.int32]]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pairs (row, its ids) as two arrays, an entry an id."""
    rows = np.repeat(np.array([at for at, _ in parts], np.int32), [len(ids) for _, ids in parts])
    return rows, np.concatenate([ids for _, ids in parts] or [np.zeros(0, np.int32)])
