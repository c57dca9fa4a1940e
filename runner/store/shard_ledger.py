"""Tracks which rows and samples of an open shard are resolved, in a few bytes per row.

A sample is resolved once it is a result or an error. A row is resolved once all its samples are, or it failed whole. Knows counts
and positions only; the journal holds the records.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.arrays import Ints
from ..core.shard_layout import Layout

WHOLE = -1  # in place of a sample: the row as a whole

_BITS = 64  # samples of a row that have a bit; those beyond are held in sets
_UNKNOWN = -1


@dataclass(slots=True, frozen=True)
class RecordedRow:
    """What is recorded of the row at ``position``: its samples (WHOLE where the row failed as a whole), and whether that is all."""

    position: int
    resolved: bool
    samples: tuple[int, ...] = ()


class Ledger:
    """Tracks a shard of ``rows`` input rows, the first of them ``first``. left: how many rows are not resolved yet."""

    def __init__(self, first: int, rows: int):
        self.records = self.errors = 0
        self.left = rows
        self._first, self._rows = first, rows
        self._samples: NDArray[np.unsignedinteger] = np.zeros(rows, np.uint8)  # bit s: sample s is resolved
        self._beyond: dict[int, set[int]] = {}
        self._needed = np.full(rows, _UNKNOWN, np.int32)
        self._failed = np.zeros(rows, np.bool_)
        self._resolved = np.zeros(rows, np.bool_)

    @property
    def rows(self) -> int:
        """Input rows of the shard."""
        return self._rows

    def admit(self, row: int, samples: int) -> None:
        """Notes that ``row`` is resolved by its samples 0 to ``samples - 1``, with those counted before.

        Later samples, from a session that made more of them, stay counted and resolve nothing.
        """
        self._needed[row - self._first] = samples
        self._settle(row)

    def add_result(self, row: int, sample: int) -> None:
        """Counts a record."""
        self.records += 1
        self._mark(row, sample)

    def add_error(self, row: int, sample: int | None) -> None:
        """Counts a failure. sample: None where the whole row failed."""
        self.errors += 1
        if sample is None:
            self._failed[row - self._first] = True
            self._settle(row)
        else:
            self._mark(row, sample)

    def add_results(self, rows: Ints, samples: Ints) -> None:
        """Counts the records of a journal or a part. rows, samples: [N]. Raises ValueError for rows of another shard."""
        self._mark_all(self._checked(rows), samples)
        self.records += len(rows)

    def add_errors(self, rows: Ints, samples: Ints) -> None:
        """Counts failures, likewise. A sample that is WHOLE means that the whole row failed."""
        at, whole = self._checked(rows), samples == WHOLE
        self._mark_all(at[~whole], samples[~whole])
        self._failed[at[whole]] = True
        self._resolve(at[whole])
        self.errors += len(rows)

    def resolve(self, rows: Ints) -> None:
        """Notes that nothing is left to do of these rows [N], however many samples they have."""
        self._resolve(self._checked(rows))

    def has(self, row: int, sample: int) -> bool:
        """Returns True when this sample needs no more work."""
        at = row - self._first
        if self._resolved[at] or self._failed[at]:
            return True
        return sample in self._beyond.get(at, ()) if sample >= _BITS else bool(int(self._samples[at]) >> sample & 1)

    def has_failed(self, row: int) -> bool:
        """Returns True when the row failed whole."""
        return bool(self._failed[row - self._first])

    def is_resolved(self, row: int) -> bool:
        """Returns True when nothing is left to do of the row."""
        return bool(self._resolved[row - self._first])

    def samples_of(self, row: int) -> set[int]:
        """Returns the samples of the row that were counted one by one."""
        at = row - self._first
        bits = int(self._samples[at])
        return {sample for sample in range(bits.bit_length()) if bits >> sample & 1} | self._beyond.get(at, set())

    def _mark(self, row: int, sample: int) -> None:
        at = row - self._first
        if sample >= _BITS:
            self._beyond.setdefault(at, set()).add(sample)
        else:
            self._widen(sample)
            self._samples[at] |= self._samples.dtype.type(1 << sample)
        self._settle(row)

    def _mark_all(self, at: Ints, samples: Ints) -> None:
        near = samples < _BITS
        if near.any():
            self._widen(int(samples[near].max()))
            kind = self._samples.dtype.type
            np.bitwise_or.at(self._samples, at[near], np.left_shift(kind(1), samples[near].astype(kind)))
        for place, sample in zip(at[~near].tolist(), samples[~near].tolist(), strict=True):
            self._beyond.setdefault(place, set()).add(sample)

    def _widen(self, sample: int) -> None:
        """Gives each row as many bits (8, 16, 32 or 64) as ``sample`` needs."""
        bits = max(8, 1 << sample.bit_length())
        if bits > 8 * self._samples.itemsize:
            self._samples = self._samples.astype(f"u{bits // 8}")

    def _settle(self, row: int) -> None:
        """Notes that a row is resolved, if its last sample is."""
        at = row - self._first
        if self._resolved[at]:
            return
        if self._failed[at] or self._has_all(at, int(self._needed[at])):
            self._resolved[at] = True
            self.left -= 1

    def _has_all(self, at: int, needed: int) -> bool:
        if needed == _UNKNOWN:
            return False
        near = (1 << min(needed, _BITS)) - 1
        beyond = sum(sample < needed for sample in self._beyond.get(at, ()))
        return int(self._samples[at]) & near == near and beyond == max(0, needed - _BITS)

    def _resolve(self, at: Ints) -> None:
        self._resolved[at] = True
        self.left = self._rows - int(np.count_nonzero(self._resolved))

    def _checked(self, rows: Ints) -> Ints:
        """Returns the rows' places in the shard."""
        at = rows - self._first
        if len(at) and (int(at.min()) < 0 or int(at.max()) >= self._rows):
            raise ValueError(f"rows {int(rows.min())} to {int(rows.max())} are not all of a shard of {self._rows} from {self._first} on")
        return at


def ledger_of(rows: range, layout: Layout, recorded: Sequence[tuple[int, int]]) -> Ledger:
    """Returns the ledger of a shard with the input rows ``rows``. recorded: position and sample (or WHOLE) of what is there already."""
    ledger = Ledger(rows.start, len(rows))
    for position, sample in recorded:
        row = layout.row_of(position)
        if not (ledger.has_failed(row) if sample == WHOLE else sample in ledger.samples_of(row)):
            if sample == WHOLE:
                ledger.add_error(row, None)
            else:
                ledger.add_result(row, sample)
    return ledger
