"""Rollouts for a trainer in the same process: ``with Rollouts("job.yaml") as rollouts: for group in rollouts: …``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...configs.errors import ConfigError
from ...configs.load import load_config
from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ...configs.sweep import SweepConfig
from ...runner.pipeline.in_memory import InMemoryRollouts
from .rollout import RolloutJob


class Rollouts(InMemoryRollouts):
    """The groups of a rollout job, sampled in this process; see ``InMemoryRollouts`` for its methods and errors.

    config: the path of a YAML file, a mapping of the same keys, or what ``load_config`` returned; overrides: "data.limit=8", for the first
    two. Raises ConfigError for another kind of job.
    """

    def __init__(self, config: str | Path | Mapping[str, object] | JobConfig | SweepConfig, overrides: Sequence[str] = ()):
        job = config if isinstance(config, JobConfig | SweepConfig) else load_config(config, overrides)
        if not isinstance(job, RolloutConfig):
            raise ConfigError(f"job: found {job.job}; expected rollout")
        super().__init__(job, RolloutJob)
