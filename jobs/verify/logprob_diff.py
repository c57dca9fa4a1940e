"""Stored logprobs against others of the same tokens: mean and largest |Δ| and k3, by policy and figure, as sums that travel.

d = other - stored, in nats; k3 = mean(exp(d) - 1 - d) estimates KL(stored || other) without a sign to cancel (Schulman 2020,
"Approximating KL divergence"). Knows no models and no files.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...runner.core.arrays import Floats

LARGEST, MEAN = 2e-4, 3e-5  # float32's promises for the same tokens in other shapes
ALL = "all"


@dataclass(slots=True)
class LogprobGap:
    """Sums over ``tokens``: of |d|, of exp(d) - 1 - d; ``largest`` is the largest |d|. Two that are -inf do not differ."""

    tokens: int = 0
    absolute: float = 0.0
    largest: float = 0.0
    k3_sum: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean |d|; None of no tokens."""
        return self.absolute / self.tokens if self.tokens else None

    @property
    def k3(self) -> float | None:
        """Mean of exp(d) - 1 - d; None of no tokens."""
        return self.k3_sum / self.tokens if self.tokens else None

    @property
    def within(self) -> bool:
        """Whether it is no more than what float32 is promised to keep to."""
        return self.mean is None or (self.largest <= LARGEST and self.mean <= MEAN)

    def add(self, stored: Floats, other: Floats) -> None:
        """Takes in the logprobs of [N] tokens; NaN differs without bound."""
        a, b = stored.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            d = np.where(np.isneginf(a) & np.isneginf(b), 0.0, b - a)
            d = np.where(np.isnan(d), np.inf, d)
            self.k3_sum += math.fsum(np.expm1(d) - d if np.isfinite(d).all() else [math.inf])
        self.tokens += len(d)
        self.absolute += math.fsum(np.abs(d))
        self.largest = max(self.largest, float(np.abs(d).max(initial=0.0)))


@dataclass(slots=True)
class LogprobComparison:
    """Differences by (policy, figure). ``how``: what the stored logprobs are held against; ``float32``: whether bounds apply.

    exact: none may differ at all (deterministic mode, replayed). diverged: records whose tokens came out otherwise, and which are
    compared up to there; left_out: records whose figure cannot be worked out again, by the reason.
    """

    how: str
    float32: bool
    exact: bool = False
    records: int = 0
    diverged: int = 0
    differences: dict[tuple[str, str], LogprobGap] = field(default_factory=dict[tuple[str, str], LogprobGap])
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def passed(self) -> bool:
        """Whether all is as it must be; true where nothing is promised."""
        if self.exact:
            return not self.diverged and all(each.largest == 0 for each in self.differences.values())
        return not self.float32 or all(each.within for each in self.differences.values())

    def add(self, policy: str, figure: str, stored: Floats, other: Floats) -> None:
        """Takes in one record's figure, for its policy and for all."""
        for name in (policy, ALL):
            self.differences.setdefault((name, figure), LogprobGap()).add(stored, other)

    def leave_out(self, reason: str) -> None:
        """Counts a record's figure that cannot be worked out again."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def comparison_as_json(found: LogprobComparison) -> Mapping[str, object]:
    """The comparison for machines; a number that JSON does not know is null."""

    def number(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    rows = [
        {
            "policy": policy,
            "figure": figure,
            "tokens": each.tokens,
            "mean": number(each.mean),
            "max": number(each.largest),
            "k3": number(each.k3),
        }
        for (policy, figure), each in sorted(found.differences.items(), key=_by_version)
    ]
    said = {"how": found.how, "float32": found.float32, "exact": found.exact, "passed": found.passed, "records": found.records}
    return said | {"diverged": found.diverged, "left_out": found.left_out, "differences": rows}


def comparison_as_text(found: LogprobComparison) -> str:
    """The comparison as a line a policy and figure, and the verdict."""
    lines = [f"{found.how:<9}{found.records:,} records"]
    policies = {policy for policy, _ in found.differences}
    for (policy, figure), each in sorted(found.differences.items(), key=_by_version):
        if policy == ALL and len(policies) == 2:  # the one policy's lines say it
            continue
        mean, k3 = 0.0 if each.mean is None else each.mean, 0.0 if each.k3 is None else each.k3
        lines.append(
            f"{'':<9}{policy:<16} {figure:<18}{each.tokens:>10,} tokens  mean |Δ| {mean:.1e}  max |Δ| {each.largest:.1e}  k3 {k3:.1e}"
        )
    lines += [f"{'':<9}left out: {count:,} records: {reason}" for reason, count in sorted(found.left_out.items())]
    if found.diverged:
        lines.append(f"{'':<9}{found.diverged:,} records came to other tokens; they are compared up to there")
    return "\n".join([*lines, _verdict(found)])


def _by_version(item: tuple[tuple[str, str], LogprobGap]) -> tuple[bool, int, str, str]:
    """By the trainer's step, which a policy's name begins with; all of them together stand last."""
    policy, figure = item[0]
    step = policy.partition("-")[0]
    return policy == ALL, int(step) if step.isdecimal() else 0, policy, figure


def _verdict(found: LogprobComparison) -> str:
    if not found.differences:
        none_yet = "no record is finished yet (a shard's are there once all its rows are done)"
        return f"nothing to compare: {'no record has logprobs' if found.records else none_yet}"
    if found.exact:
        return "the same to the bit" if found.passed else "not the same to the bit, which batch.deterministic promises"
    bounds = f"max {LARGEST:.0e}, mean {MEAN:.0e}"
    if not found.float32:
        return f"no bounds are promised in half precision (in float32: {bounds})"
    return f"within float32's bounds ({bounds})" if found.passed else f"beyond float32's bounds ({bounds}): these are not its policy's"
