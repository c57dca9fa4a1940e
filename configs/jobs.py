"""The kinds of job by name, with the models of their configs."""

from .rollout import RolloutConfig
from .schema import GenerateConfig, JobConfig
from .score import ScoreConfig
from .sweep import SweepConfig

ROW_JOBS: dict[str, type[JobConfig]] = {"generate": GenerateConfig, "score": ScoreConfig, "rollout": RolloutConfig}
JOBS: dict[str, type[JobConfig | SweepConfig]] = {**ROW_JOBS, "sweep": SweepConfig}
