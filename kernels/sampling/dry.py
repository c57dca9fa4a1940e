"""DRY, "don't repeat yourself": penalises a token that would go on with a sequence that stands in the row already.

By p-e-w, 2024 (oobabooga/textgen pull request 5677). Where the last n tokens stand earlier too, n at least ``allowed_length``, the token
that followed them there loses ``multiplier * base ** (n - allowed_length)`` of its logit; of several places the longest n counts. A
sequence breaker ends a match, and none is penalised: what stands on both sides of it is no repetition.

    the cat sat . the cat          the last 2 tokens stand at the start too: "sat" is penalised with n = 2

A match grows from token to token: where ids[i] is the new token, the match that ended at i - 1 is longer by one, and all others end. So a
token costs one comparison with each token before it, and no text is searched again.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

MOST = 1e30  # of a penalty: far beyond all logits, and finite, so that a row never has nothing but -inf


@dataclass(slots=True, frozen=True)
class DryRule:
    """DRY's parameters of a row. span: how many of the newest tokens are looked at, 0 for all. breakers: token ids."""

    multiplier: float
    base: float
    allowed_length: int
    span: int
    breakers: frozenset[int]


class Repetition:
    """Where the newest tokens of one row stand before: ``push`` takes a token, ``penalties`` says what must not follow."""

    def __init__(self, rule: DryRule, ids: Collection[int] | Ints):
        """Takes the prompt's ids. No match reaches over the last breaker, so what stands before it is only kept."""
        self._rule = rule
        prompt = np.asarray(ids, np.int32)
        ends = np.flatnonzero(np.isin(prompt, list(rule.breakers)))
        known = int(ends[-1]) + 1 if len(ends) else 0
        self._ids, self._n = np.zeros(2 * len(prompt) + 64, np.int32), known
        self._ids[:known] = prompt[:known]
        self._lengths = np.zeros(len(self._ids) + 1, np.int32)  # at i + 1: of the match that ends at token i
        self._ends = np.zeros(0, np.intp)  # the tokens at which a match ends
        for token in prompt[known:].tolist():
            self.push(token)

    def push(self, token: int) -> None:
        """Takes the row's next token."""
        if self._n == len(self._ids):
            self._ids, self._lengths = (np.concatenate([x, np.zeros(len(self._ids), np.int32)]) for x in (self._ids, self._lengths))
        first = self._first(self._n + 1)
        ends = first + np.flatnonzero(self._ids[first : self._n] == token)
        if token in self._rule.breakers:
            ends = ends[:0]
        lengths = self._lengths[ends] + 1
        self._lengths[self._ends + 1] = 0
        self._lengths[ends + 1] = lengths
        self._ids[self._n] = token
        self._ends, self._n = ends, self._n + 1

    def penalties(self) -> tuple[Ints, Floats]:
        """Returns the ids [P] that would go on with a repetition, ascending, and what their logits lose [P]."""
        rule, first = self._rule, self._first(self._n)
        ends = self._ends[self._ends >= first]
        lengths = np.minimum(self._lengths[ends + 1], ends - first + 1)
        long = lengths >= rule.allowed_length
        if not long.any():
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        followers, where = np.unique(self._ids[ends[long] + 1], return_inverse=True)
        longest = np.zeros(len(followers), np.int64)
        np.maximum.at(longest, where, lengths[long])
        open_ids = np.array([token not in rule.breakers for token in followers.tolist()])  # few, of thousands of breakers
        with np.errstate(over="ignore"):
            lost = np.minimum(rule.multiplier * np.power(rule.base, longest[open_ids] - rule.allowed_length, dtype=np.float64), MOST)
        return followers[open_ids], lost.astype(np.float32)

    def _first(self, n: int) -> int:
        """Returns the first of n tokens that is looked at."""
        return max(0, n - self._rule.span) if self._rule.span else 0
