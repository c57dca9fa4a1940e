"""Lists the kinds of job by their names in a config."""

from ..runner.pipeline.job import Kind
from .classify.classify import ClassifyJob
from .embed.embed import EmbedJob
from .generate.generate import GenerateJob
from .generate.rollout import RolloutJob
from .score.score import ScoreJob

KINDS: dict[str, Kind] = {"generate": GenerateJob, "score": ScoreJob, "rollout": RolloutJob, "embed": EmbedJob, "classify": ClassifyJob}
