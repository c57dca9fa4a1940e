"""Compares stored logprobs with others of the same tokens: mean and largest |Δ| and k3, by policy and figure, as sums.

d = other - stored, in nats; k3 = mean(exp(d) - 1 - d) estimates KL(stored || other) without a sign to cancel (Schulman 2020,
"Approximating KL divergence"). Knows no models and no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...runner.core.arrays import Floats
from ...runner.files.checked_json import json_number
from ...runner.rescore.logprob_gap import LARGEST, MEAN, LogprobGap
from ..terminal.tables import count_text
from .lost_records import LostRecords

ALL = "all"


@dataclass(slots=True)
class LogprobComparison:
    """Differences by (policy, figure). ``how``: the way the other logprobs were computed; ``float32``: whether bounds apply.

    exact: none may differ at all (deterministic mode, replayed). diverged: records that got other tokens, compared up to the first
    of them; left_out: records whose figure cannot be computed again, by the reason; lost: records whose rows no longer give what they
    gave. kv_bits: of the run's keys and values, None where they were not quantized; those that were have no bounds.
    """

    how: str
    float32: bool
    exact: bool = False
    kv_bits: int | None = None
    records: int = 0
    diverged: int = 0
    differences: dict[tuple[str, str], LogprobGap] = field(default_factory=dict[tuple[str, str], LogprobGap])
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    lost: LostRecords = field(default_factory=LostRecords)

    @property
    def incomparable(self) -> bool:
        """True where there are records and no token of them could be compared: nothing can be said, so nothing is well."""
        return bool(self.lost or self.diverged) and not any(each.tokens for each in self.differences.values())

    @property
    def passed(self) -> bool:
        """True when all differences are allowed, or nothing is promised; never where nothing could be compared."""
        if self.incomparable:
            return False
        if self.exact:
            return not self.diverged and not self.lost and all(each.largest == 0 for each in self.differences.values())
        return not self.float32 or self.kv_bits is not None or all(each.within for each in self.differences.values())

    def add(self, policy: str, figure: str, stored: Floats, other: Floats) -> None:
        """Adds one record's figure, to its policy and to the total."""
        for name in (policy, ALL):
            self.differences.setdefault((name, figure), LogprobGap()).add(stored, other)

    def leave_out(self, reason: str) -> None:
        """Counts a record's figure that cannot be computed again."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def comparison_as_json(comparison: LogprobComparison) -> Mapping[str, object]:
    """Returns the comparison as JSON values; NaN and infinities are null."""

    rows = [
        {
            "policy": policy,
            "figure": figure,
            "tokens": each.tokens,
            "mean": json_number(each.mean),
            "max": json_number(each.largest),
            "k3": json_number(each.k3),
        }
        for (policy, figure), each in sorted(comparison.differences.items(), key=_by_version)
    ]
    return {
        "how": comparison.how,
        "float32": comparison.float32,
        "exact": comparison.exact,
        "passed": comparison.passed,
        "records": comparison.records,
        "diverged": comparison.diverged,
        "left_out": comparison.left_out | comparison.lost.counts(),
        "differences": rows,
    }


def comparison_as_text(comparison: LogprobComparison) -> str:
    """Returns the comparison as a line for each policy and figure, and the verdict."""
    lines = [f"{comparison.how:<9}{count_text(comparison.records, 'record')}"]
    policies = {policy for policy, _ in comparison.differences}
    for (policy, figure), each in sorted(comparison.differences.items(), key=_by_version):
        if policy == ALL and len(policies) == 2:  # the one policy's lines show the same
            continue
        mean, k3 = 0.0 if each.mean is None else each.mean, 0.0 if each.k3 is None else each.k3
        lines.append(
            f"{'':<9}{policy:<16} {figure:<18}{each.tokens:>10,} tokens  mean |Δ| {mean:.1e}  max |Δ| {each.largest:.1e}  k3 {k3:.1e}"
        )
    lines += [f"{'':<9}left out: {count_text(count, 'record')}: {reason}" for reason, count in sorted(comparison.left_out.items())]
    lines += comparison.lost.lines()
    if comparison.diverged:
        lines.append(f"{'':<9}{count_text(comparison.diverged, 'record')} came to other tokens; they are compared up to there")
    return "\n".join([*lines, _verdict(comparison)])


def _by_version(item: tuple[tuple[str, str], LogprobGap]) -> tuple[bool, int, str, str]:
    """Sorts by the trainer's step, which a policy's name begins with; the total is last."""
    policy, figure = item[0]
    step = policy.partition("-")[0]
    return policy == ALL, int(step) if step.isdecimal() else 0, policy, figure


def _verdict(comparison: LogprobComparison) -> str:
    if comparison.incomparable:
        changed = "; put the input back as it was" if comparison.lost else ""
        return f"nothing could be compared, so nothing is verified{changed}"
    if not comparison.differences:
        none_yet = "no record is finished yet (a shard's are there once all its rows are done)"
        return f"nothing to compare: {'no record has logprobs' if comparison.records else none_yet}"
    if comparison.exact and comparison.lost:
        return "not known to be the same to the bit: without the records left out, batches are not the run's; put the input back as it was"
    if comparison.exact:
        return "the same to the bit" if comparison.passed else "not the same to the bit, which batch.deterministic promises"
    bounds = f"max {LARGEST:.0e}, mean {MEAN:.0e}"
    if comparison.kv_bits is not None:
        held = "unlike those of the model in full precision" if comparison.how == "rescored" else "in other batches"
        return f"no bounds are promised: the run kept keys and values in {comparison.kv_bits} bits, and its logprobs are {held}"
    if not comparison.float32:
        return f"no bounds are promised in half precision (in float32: {bounds})"
    return f"within float32's bounds ({bounds})" if comparison.passed else f"beyond float32's bounds ({bounds}): these are not its policy's"
