"""The kinds of job by name, each with the model of its config."""

from .schema import GenerateConfig, JobConfig
from .score import ScoreConfig

JOBS: dict[str, type[JobConfig]] = {"generate": GenerateConfig, "score": ScoreConfig}
