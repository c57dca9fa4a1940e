"""The kinds of job by name, with the models of their configs."""

from .classify import ClassifyConfig
from .embed import EmbedConfig
from .rollout import RolloutConfig
from .schema import GenerateConfig, JobConfig
from .score import ScoreConfig
from .sweep import SweepConfig

ROW_JOBS: dict[str, type[JobConfig]] = {
    "generate": GenerateConfig,
    "score": ScoreConfig,
    "rollout": RolloutConfig,
    "embed": EmbedConfig,
    "classify": ClassifyConfig,
}
JOBS: dict[str, type[JobConfig | SweepConfig]] = {**ROW_JOBS, "sweep": SweepConfig}
