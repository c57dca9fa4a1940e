"""Turns the rewards of a group into advantages: how much better each sample did than the others. Knows numbers alone.

All sums are float64. A reward of None enters no mean, and its advantage is 0.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

EPSILON = 1e-4  # TRL's; verl's is 1e-6
LARGEST = float(np.finfo(np.float32).max) / 2  # of a reward: an advantage may be twice as large and must fit float32
DEGENERATE = "DegenerateGroup"  # the name in errors/ of a group that was dropped because it teaches nothing

Rewards = Sequence[float | None]


def weighted(rewards: Mapping[str, Rewards], weights: Mapping[str, float]) -> list[float | None]:
    """Returns each sample's reward: Σ weight · reward over the functions that rated it (TRL's nansum).

    None where no function rated it, and where the sum is beyond ±LARGEST.

    >>> weighted({"correct": [1.0, None, None], "brevity": [0.5, 0.25, None]}, {"correct": 1.0, "brevity": 2.0})
    [2.0, 0.5, None]
    """
    rated = [
        [(weights[name], value) for name, value in zip(rewards, sample, strict=True)] for sample in zip(*rewards.values(), strict=True)
    ]
    return [_sum([weight * value for weight, value in sample if value is not None]) for sample in rated]


def advantages(kind: str, rewards: Rewards) -> list[float | None]:
    """Returns the advantage of each sample of one group, by the config's ``advantages``.

    grpo: (r − mean) / (std + 1e-4), std with n − 1 (DeepSeekMath, arXiv 2402.03300, section 4.1.2, as TRL has it); centered: r − mean
    (Dr. GRPO, arXiv 2503.20783); rloo: r − the mean of the others (arXiv 2402.14740, equation 9); none: None for each.
    0 for a sample without a reward, and for all samples of a group with fewer than two rewards or only equal ones.

    >>> [round(a, 3) for a in advantages("grpo", [1, 0, 0, 0, 0, 0, 0, 0])][:2]
    [2.474, -0.353]
    >>> advantages("rloo", [1.0, 0.0, None, 0.5])
    [0.75, -0.75, 0.0, 0.0]
    """
    if kind == "none":
        return [None] * len(rewards)
    rated = [reward for reward in rewards if reward is not None]
    if is_degenerate(rewards):
        return [0.0] * len(rewards)
    n, mean = len(rated), math.fsum(rated) / len(rated)
    if kind == "grpo":
        scale = 1 / (math.sqrt(math.fsum((reward - mean) ** 2 for reward in rated) / (n - 1)) + EPSILON)
    elif kind == "centered":
        scale = 1.0
    else:
        assert kind == "rloo", kind
        scale = n / (n - 1)  # r − (S − r)/(n − 1) = (r − S/n) · n/(n − 1)
    return [0.0 if reward is None else (reward - mean) * scale for reward in rewards]


def is_degenerate(rewards: Rewards) -> bool:
    """Returns whether a group teaches nothing: it has fewer than two rewards, or all are equal in float32, as stored."""
    return len({np.float32(reward) for reward in rewards if reward is not None}) < 2


def best(rewards: Rewards) -> int | None:
    """Returns the place of the highest reward, the first of those equal in float32, as stored; None where no sample has one.

    >>> best([0.5, None, 2.0, 2.0])
    2
    """
    rated = [at for at, reward in enumerate(rewards) if reward is not None]
    return max(rated, key=lambda at: np.float32(rewards[at]), default=None)


def _sum(values: Sequence[float]) -> float | None:
    return total if values and abs(total := math.fsum(values)) <= LARGEST else None
