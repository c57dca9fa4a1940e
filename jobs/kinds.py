"""The kinds of job by the name that a config gives them: what ``mlx-bulk run`` can run."""

from ..runner.pipeline.job import Kind
from .generate.generate import GenerateJob
from .generate.rollout import RolloutJob
from .score.score import ScoreJob

KINDS: dict[str, Kind] = {"generate": GenerateJob, "score": ScoreJob, "rollout": RolloutJob}
