"""Compares stored vectors with others of the same rows: the largest |Δ| of a number, and of it as a share of the vector's length.

Knows no models and no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ...runner.core.arrays import Floats
from ...runner.files.checked_json import json_number
from ..terminal.tables import count_text
from .lost_records import LostRecords

LOGIT, SHARE = 1e-4, 1e-5  # float32's promises for the same tokens in other batches: of a logit, and of an embedding's length
HALF = 2.0**-10  # two roundings of a float16


@dataclass(slots=True)
class VectorComparison:
    """Differences of ``records`` vectors that stand in ``column`` as numbers of ``stored_as``.

    logits: they are a classifier's. float32: the model computes in it, so bounds apply. of: the run's rows. largest: the largest |Δ|;
    worst: the largest of it over what is allowed. other: records whose numbers are not the same to the bit. lost: records whose rows no
    longer give what they gave.
    """

    column: str
    stored_as: str
    logits: bool
    float32: bool
    of: int
    records: int = 0
    other: int = 0
    largest: float = 0.0
    worst: float = 0.0
    lost: LostRecords = field(default_factory=LostRecords)

    @property
    def bounded(self) -> bool:
        """True where float32's promises say how large a difference may be."""
        return self.float32 and self.stored_as in ("float", "halffloat")

    @property
    def passed(self) -> bool:
        """True when all differences are allowed, or nothing is promised; never where all records are lost."""
        if self.lost and not self.records:
            return False
        return not self.bounded or self.worst <= 1.0

    def add(self, stored: Floats, other: Floats) -> None:
        """Adds a record's numbers, stored and computed again, both [N]; a missing one or a NaN counts as an infinite difference."""
        self.records += 1
        if stored.shape == other.shape and np.array_equal(stored, other):
            return
        self.other += 1
        gap = float("inf")
        if stored.shape == other.shape:
            gap = float(np.abs(stored.astype(np.float64) - other.astype(np.float64)).max())
        gap = gap if np.isfinite(gap) else float("inf")
        size = float(np.linalg.norm(stored.astype(np.float64)))
        allowed = LOGIT if self.logits else SHARE * max(size, 1e-30)
        if self.stored_as == "halffloat":
            allowed += HALF * float(np.abs(stored).max(initial=0.0))
        self.largest, self.worst = max(self.largest, gap), max(self.worst, gap / allowed)


def stored_as(of: pa.DataType) -> str:
    """Returns the type of the numbers in a column of vectors, or of lists of them."""
    while pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of):
        of = of.value_type
    return str(of)


def vectors_as_json(comparison: VectorComparison) -> Mapping[str, object]:
    """Returns the comparison as JSON values; infinities are null."""
    return {
        "how": "recomputed",
        "column": comparison.column,
        "stored_as": comparison.stored_as,
        "float32": comparison.float32,
        "passed": comparison.passed,
        "records": comparison.records,
        "other": comparison.other,
        "max": json_number(comparison.largest),
        "left_out": comparison.lost.counts(),
    }


def vectors_as_text(comparison: VectorComparison) -> str:
    """Returns the comparison as a line, and the verdict."""
    if not comparison.records and comparison.lost:
        return "\n".join([*comparison.lost.lines(), "nothing could be compared, so nothing is verified; put the input back as it was"])
    if not comparison.records:
        return "nothing to compare: no record is finished yet (a shard's are there once all its rows are done)"
    same = "all the same to the bit" if not comparison.other else f"max |Δ| {comparison.largest:.1e} in {comparison.column}"
    spread = f" of {count_text(comparison.of, 'row')}, spread evenly" if comparison.records < comparison.of else ""
    lines = [f"{'anew':<9}{count_text(comparison.records, 'record')}{spread}: {same}", *comparison.lost.lines()]
    bound = f"{LOGIT:.0e} a logit" if comparison.logits else f"{SHARE:.0e} of a vector's length"
    if comparison.stored_as == "halffloat":
        bound += ", and the rounding of float16"
    if not comparison.bounded:
        why = f"no bounds are promised for numbers stored as {comparison.stored_as}" if comparison.float32 else "in half precision"
        lines.append(why if comparison.float32 else f"no bounds are promised {why} (in float32: {bound})")
    elif comparison.passed:
        lines.append(f"within float32's bounds ({bound})")
    else:
        lines.append(f"beyond float32's bounds ({bound}): these are not this model's over this input")
    return "\n".join(lines)
