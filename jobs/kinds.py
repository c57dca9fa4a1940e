"""Lists the kinds of job by their names in a config."""

from ..runner.pipeline.job import Kind
from .generate.generate import GenerateJob
from .generate.rollout import RolloutJob
from .score.score import ScoreJob

KINDS: dict[str, Kind] = {"generate": GenerateJob, "score": ScoreJob, "rollout": RolloutJob}
