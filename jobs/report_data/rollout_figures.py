"""Gathers a rollout's figures for a report: rewards in bins, sums over all groups and by policy, and groups to look at.

Gathered while the records stream by. Knows no files and no charts.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..statistics.rollout_groups import GroupSplitter, RolloutGroup
from ..statistics.rollout_sums import RolloutSums
from .bins import Bins
from .lowest import Lowest, hash_uniforms

_SHOWN_GROUPS = 12
_REWARD_BINS = (-100.0, 1 / 64, 100.0)


@dataclass(slots=True)
class RolloutFigures:
    """The figures of the groups so far.

    sums: over all groups. versions: over those of each policy version, in order of appearance. rewards: of samples. means: mean
    rewards of groups. best, worst: of some groups whose rewards differ, the sample with the highest and with the lowest reward.
    """

    sums: RolloutSums = field(default_factory=RolloutSums)
    versions: dict[str, RolloutSums] = field(default_factory=dict[str, RolloutSums])
    rewards: Bins = field(default_factory=lambda: Bins(*_REWARD_BINS))
    means: Bins = field(default_factory=lambda: Bins(*_REWARD_BINS))
    best: Lowest = field(default_factory=lambda: Lowest(_SHOWN_GROUPS))
    worst: Lowest = field(default_factory=lambda: Lowest(_SHOWN_GROUPS))
    _splitter: GroupSplitter = field(default_factory=GroupSplitter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the next records, which have ``GROUP_COLUMNS``. Their last group counts once it is whole."""
        self.rewards.add(pc.cast(batch.column("reward"), pa.float64()).drop_null().to_numpy())
        for group in self._splitter.add(batch):
            self._add_group(group)

    def finish(self) -> None:
        """Adds the last group: no records follow."""
        for group in self._splitter.finish():
            self._add_group(group)

    def _add_group(self, group: RolloutGroup) -> None:
        self.sums.add(group)
        self.versions.setdefault(group.policy_version, RolloutSums()).add(group)
        rated = [(reward, sample) for reward, sample in zip(group.rewards or (), group.samples, strict=True) if reward is not None]
        rewards = np.array([reward for reward, _ in rated])
        if not len(rewards):
            return
        self.means.add(rewards.mean(keepdims=True))
        if rewards.min() < rewards.max():
            chance = hash_uniforms(np.array([[group.round, group.row, 0]]))
            for picks, at in ((self.best, rewards.argmax()), (self.worst, rewards.argmin())):
                picks.add(chance, np.array([[group.round, group.row, rated[int(at)][1]]]))
