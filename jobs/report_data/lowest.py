"""Picks the records with the lowest scores while a run's records stream by.

Knows scores and identities of records. The caller knows what a score means.
"""

from dataclasses import dataclass, field

import numpy as np

from ...runner.core.arrays import Doubles, Ints


@dataclass(slots=True)
class Lowest:
    """The ``keep`` records with the lowest scores so far, the lowest first.

    scores: [K]; records: [K, 3], each record's round, row and sample; notes: [K], a number for each (the place of a span).
    """

    keep: int
    scores: Doubles = field(default_factory=lambda: np.zeros(0))
    records: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    notes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, scores: Doubles, records: Ints, notes: Ints | None = None) -> None:
        """Adds ``records`` [N, 3] with ``scores`` [N] and keeps the lowest. NaN is never kept; among equals the first is."""
        fit = ~np.isnan(scores)
        if len(self.scores) == self.keep:
            fit &= scores < self.scores[-1]
        if not fit.any():
            return
        new_notes = np.zeros(int(fit.sum()), np.int64) if notes is None else notes[fit]
        scores, records = np.concatenate([self.scores, scores[fit]]), np.concatenate([self.records, records[fit]])
        order = np.argsort(scores, kind="stable")[: self.keep]
        self.scores, self.records, self.notes = scores[order], records[order], np.concatenate([self.notes, new_notes])[order]

    @property
    def found(self) -> list[tuple[int, int, int]]:
        """Round, row and sample of each record kept."""
        return [(int(a), int(b), int(c)) for a, b, c in self.records]


def hash_uniforms(records: Ints) -> Doubles:
    """Returns a number in [0, 1) for each record [N, 3], spread like a random one but the same each time.

    The finalizer of SplitMix64 (Steele, Lea, Flood 2014) over the record's identity.
    """
    with np.errstate(over="ignore"):
        mixed = np.zeros(len(records), np.uint64)
        for part in records.astype(np.uint64).T:
            mixed = (mixed ^ part) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
