"""Rollouts by group: rewards, how often a group is solved, and pass@k, gathered while the records stream by.

A group is the samples of one row in one round; records come in that order. Knows no files and no charts.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...runner.core.arrays import Doubles, Ints
from ..statistics.rollout_stats import pass_at_k
from .bins import Bins
from .lowest import Lowest, shuffled

_KEEP = 12  # groups to look at
_REWARDS = (-100.0, 1 / 64, 100.0)


@dataclass(slots=True)
class Version:
    """Rewards under one policy version, by their groups d of n_d rewards with the sum s_d: Σ 1, Σ n, Σ s, Σ s², Σ s·n, Σ n²."""

    groups: int = 0
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    sizes: float = 0.0

    def add(self, rewards: Doubles) -> None:
        """Takes the rewards [N] of a group in."""
        n, s = len(rewards), float(rewards.sum())
        self.groups += n > 0
        self.count += n
        self.total += s
        self.squares += s * s
        self.products += s * n
        self.sizes += n * n

    @property
    def mean(self) -> float:
        """The mean reward."""
        return self.total / self.count

    @property
    def error(self) -> float | None:
        """Its standard error, clustered by group, as ``runner.stats.clustered_error`` has it; None for one group."""
        if self.groups < 2:
            return None
        apart = self.squares - 2 * self.mean * self.products + self.mean**2 * self.sizes
        return math.sqrt(max(0.0, self.groups / (self.groups - 1) * apart)) / self.count


@dataclass(slots=True)
class GroupFigures:
    """What the groups so far have come to. functions: the names of the reward functions.

    count: groups; even: those with fewer than two rewards, or with equal ones only; unrewarded: samples without a reward.
    hits: of a function, (samples that it rated, of them 1) -> groups; None for one that gives other rewards than 0 and 1.
    best, worst: a sample of each of some groups whose rewards differ.
    """

    functions: Sequence[str] = ()
    rewards: Bins = field(default_factory=lambda: Bins(*_REWARDS))
    means: Bins = field(default_factory=lambda: Bins(*_REWARDS))
    versions: dict[str, Version] = field(default_factory=dict[str, Version])
    hits: dict[str, Counter[tuple[int, int]] | None] = field(default_factory=dict[str, Counter[tuple[int, int]] | None])
    count: int = 0
    even: int = 0
    unrewarded: int = 0
    best: Lowest = field(default_factory=lambda: Lowest(_KEEP))
    worst: Lowest = field(default_factory=lambda: Lowest(_KEEP))
    _held: tuple[Ints, Doubles, list[str]] | None = None

    def add(self, records: Ints, rewards: Doubles, versions: Sequence[str]) -> None:
        """Takes the next samples: ``records`` [N, 3] (round, row, sample), what they got, and their policy versions [N].

        rewards: [N, 1 + F], a sample's reward and what each of the functions gave; NaN where there is none.
        """
        total = rewards[:, 0]
        self.unrewarded += int(np.isnan(total).sum())
        self.rewards.add(total[~np.isnan(total)])
        versions = list(versions)
        if self._held is not None:
            records, rewards = np.concatenate([self._held[0], records]), np.concatenate([self._held[1], rewards])
            versions = self._held[2] + versions
        new = np.flatnonzero((np.diff(records[:, :2], axis=0) != 0).any(axis=1)) + 1
        last = int(new[-1]) if len(new) else 0
        self._held = records[last:], rewards[last:], versions[last:]  # the next batch may go on with this group
        for start, end in zip([0, *new[:-1].tolist()], new.tolist(), strict=False):
            self._close(records[start:end], rewards[start:end], versions[start])

    def finish(self) -> None:
        """The last group is whole."""
        if self._held is not None and len(self._held[0]):
            records, rewards, versions = self._held
            self._close(records, rewards, versions[0])
        self._held = None

    def _close(self, records: Ints, rewards: Doubles, version: str) -> None:
        given = np.flatnonzero(~np.isnan(rewards[:, 0]))
        values = rewards[given, 0]
        differ = len(values) > 1 and bool(values.min() < values.max())
        self.count += 1
        self.even += not differ
        self.versions.setdefault(version, Version()).add(values)
        if len(values):
            self.means.add(values.mean(keepdims=True))
        if differ:
            chance = shuffled(records[:1] * np.array([1, 1, 0]))
            self.best.add(chance, records[given[[int(values.argmax())]]])
            self.worst.add(chance, records[given[[int(values.argmin())]]])
        for index, name in enumerate(self.functions, start=1):
            rated = rewards[~np.isnan(rewards[:, index]), index]
            hits = self.hits.setdefault(name, Counter())
            if hits is not None and ((rated == 0) | (rated == 1)).all():
                hits[len(rated), int(rated.sum())] += 1
            else:
                self.hits[name] = None

    def pass_curve(self, name: str) -> list[tuple[int, float, int]]:
        """k, pass@k of a function averaged over the groups of k samples or more, and how many those are.

        k = 1, 2, 4, … and the size of the largest group; nothing for a function that gives other rewards than 0 and 1.
        """
        hits = self.hits.get(name) or Counter[tuple[int, int]]()
        largest = max((n for n, _ in hits), default=0)
        found: list[tuple[int, float, int]] = []
        for k in sorted({*(1 << power for power in range(largest.bit_length())), largest} - {0}):
            fit = {size: groups for size, groups in hits.items() if size[0] >= k}
            groups = sum(fit.values())
            found.append((k, math.fsum(pass_at_k(n, c, k) * count for (n, c), count in fit.items()) / groups, groups))
        return found
