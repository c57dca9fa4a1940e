"""Rollouts for a trainer in the same process: ``with Rollouts(config) as rollouts: for group in rollouts: …``."""

from ...configs.rollout import RolloutConfig
from ...runner.pipeline.in_memory import InMemoryRollouts
from .rollout import RolloutJob


class Rollouts(InMemoryRollouts):
    """The groups of a rollout job, sampled in this process; see ``InMemoryRollouts`` for its methods and errors."""

    def __init__(self, config: RolloutConfig):
        super().__init__(config, RolloutJob)
