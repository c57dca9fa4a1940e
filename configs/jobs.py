"""The kinds of job by name, each with the model of its config."""

from .rollout import RolloutConfig
from .schema import GenerateConfig, JobConfig
from .score import ScoreConfig
from .sweep import SweepConfig

ROW_JOBS: dict[str, type[JobConfig]] = {"generate": GenerateConfig, "score": ScoreConfig, "rollout": RolloutConfig}
JOBS: dict[str, type[JobConfig | SweepConfig]] = {**ROW_JOBS, "sweep": SweepConfig}
