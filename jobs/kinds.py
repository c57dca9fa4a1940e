"""The kinds of job by the name that a config gives them: what ``mlx-bulk run`` can run."""

from ..runner.job import Kind
from .generate import GenerateJob
from .rollout import RolloutJob
from .score import ScoreJob

KINDS: dict[str, Kind] = {"generate": GenerateJob, "score": ScoreJob, "rollout": RolloutJob}
