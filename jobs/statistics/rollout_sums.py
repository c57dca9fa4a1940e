"""Sums over the groups of a rollout run, or over some of them: counts, rewards, what functions failed to rate, and pass@k.

Sums take groups one by one. They keep 24 bytes a group, which the standard error needs; all else has a fixed size.
"""

import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .advantages import is_degenerate
from .rollout_groups import RolloutGroup
from .standard_errors import clustered_error


@dataclass(slots=True)
class Moments:
    """Mean and standard deviation of numbers that come one by one (Welford 1962)."""

    count: int = 0
    sum: float = 0.0
    _mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Adds one number."""
        self.count += 1
        self.sum += value
        gap = value - self._mean
        self._mean += gap / self.count
        self._squares += gap * (value - self._mean)

    @property
    def mean(self) -> float | None:
        """The mean; None without numbers."""
        return self.sum / self.count if self.count else None

    @property
    def std(self) -> float | None:
        """The standard deviation with n − 1; None for fewer than two numbers."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else None


@dataclass(slots=True)
class RewardError:
    """Samples that a function did not rate for one kind of reason: how many, and the row and text of the first."""

    count: int
    row: int
    text: str


@dataclass(slots=True)
class FunctionSums:
    """The rewards of one function. errors: why samples have none, by kind of reason.

    binary: all rewards are 0 or 1. As long as they are, hits counts groups by (samples rated, samples with reward 1).
    """

    moments: Moments = field(default_factory=Moments)
    errors: dict[str, RewardError] = field(default_factory=dict[str, RewardError])
    hits: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    binary: bool = True

    def add(self, rewards: Sequence[float | None], errors: Sequence[str | None], row: int) -> None:
        """Adds the rewards and errors of a group, whose row is ``row``."""
        rated = [reward for reward in rewards if reward is not None]
        for reward in rated:
            self.moments.add(reward)
        for error in errors:
            if error is not None:
                kind, _, text = error.partition(": ")
                self.errors.setdefault(kind, RewardError(0, row, text)).count += 1
        self.binary = self.binary and all(reward in (0.0, 1.0) for reward in rated)
        self.hits[len(rated), int(sum(rated)) if self.binary else 0] += 1

    def pass_at(self, k: int) -> tuple[float, int] | None:
        """Returns pass@k averaged over the groups with at least k rated samples, and how many those are.

        None where there is no such group, and for a function that gives other rewards than 0 and 1.
        """
        large = {group: count for group, count in self.hits.items() if group[0] >= k}
        if not self.binary or not large:
            return None
        groups = sum(large.values())
        return math.fsum(count * pass_at_k(n, hits, k) for (n, hits), count in large.items()) / groups, groups

    @property
    def pass_curve(self) -> list[tuple[int, float, int]]:
        """k, pass@k and the number of groups that have it, for the ``powers`` up to the largest group."""
        largest = max((n for n, _ in self.hits), default=0)
        return [(k, *point) for k in powers(largest) if (point := self.pass_at(k)) is not None]


@dataclass(slots=True)
class RolloutSums:
    """Sums over groups: all of a run, those of a round, or those of a policy version.

    counts: groups and samples; degenerate: groups with fewer than two rewards, or only equal ones; unrated: samples without a
    reward; truncated; completion_tokens; stale: groups, where the run bounds staleness. reward: over all samples that have one.
    most_samples: of the largest group. drawn: over all samples that were drawn, where the best of a group alone has a record; counts then
    has ``drawn``, how many they are.
    """

    counts: Counter[str] = field(default_factory=Counter[str])
    reward: Moments = field(default_factory=Moments)
    functions: dict[str, FunctionSums] = field(default_factory=dict[str, FunctionSums])
    most_samples: int = 0
    drawn: Moments = field(default_factory=Moments)
    _group_rows: "array[int]" = field(default_factory=lambda: array("q"))
    _group_sums: "array[float]" = field(default_factory=lambda: array("d"))
    _group_sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, group: RolloutGroup) -> None:
        """Adds a group."""
        n = len(group.samples)
        rated = [reward for reward in group.rewards or () if reward is not None]
        self.most_samples = max(self.most_samples, n)
        self.counts.update(groups=1, samples=n, truncated=group.truncated, completion_tokens=group.completion_tokens)
        compared = group.rewards if group.drawn is None else group.drawn
        if compared is not None:
            self.counts.update(degenerate=int(is_degenerate(compared)), unrated=n - len(rated))
        if group.stale is not None:
            self.counts.update(stale=int(group.stale))
        for reward in group.drawn or ():
            self.counts["drawn"] += 1
            if reward is not None:
                self.drawn.add(reward)
        for reward in rated:
            self.reward.add(reward)
        self._group_rows.append(group.row)
        self._group_sums.append(math.fsum(rated))
        self._group_sizes.append(len(rated))
        for name, rewards in group.by_function.items():
            self.functions.setdefault(name, FunctionSums()).add(rewards, group.errors[name], group.row)

    @property
    def reward_error(self) -> float | None:
        """Standard error of the mean reward, clustered by prompt; None for fewer than two prompts with a reward.

        The groups that a prompt has in several rounds are one cluster: drawing it again says little about other prompts.
        """
        _, prompt = np.unique(np.array(self._group_rows, np.int64), return_inverse=True)
        sums, sizes = np.zeros(prompt.max(initial=-1) + 1), np.zeros(prompt.max(initial=-1) + 1, np.int64)
        np.add.at(sums, prompt, np.array(self._group_sums))
        np.add.at(sizes, prompt, np.array(self._group_sizes, np.int64))
        return clustered_error(sums, sizes)

    @property
    def not_rated(self) -> Mapping[tuple[str, str], RewardError]:
        """Why samples have no reward, by function and kind of reason."""
        return {(name, kind): error for name, sums in self.functions.items() for kind, error in sums.errors.items()}


def pass_at_k(n: int, hits: int, k: int) -> float:
    """Returns the chance that k samples drawn from n hold a right one, where ``hits`` are right: ``1 − C(n − hits, k) / C(n, k)``.

    The unbiased estimate of Chen et al., Evaluating Large Language Models Trained on Code, arXiv 2107.03374, equation 1.

    >>> pass_at_k(8, 1, 1), pass_at_k(8, 1, 8), pass_at_k(4, 2, 2)
    (0.125, 1.0, 0.8333333333333334)
    """
    return 1 - math.comb(n - hits, k) / math.comb(n, k)


def powers(largest: int) -> list[int]:
    """Returns each k that pass@k is given for: 1, 2, 4, … and ``largest``, the samples of the largest group.

    >>> powers(6), powers(0)
    ([1, 2, 4, 6], [])
    """
    return sorted({1 << power for power in range(largest.bit_length())} | {largest}) if largest else []
