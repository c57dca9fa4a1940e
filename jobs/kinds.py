"""The kinds of job by the name that a config gives them: what ``mlx-bulk run`` can run."""

from ..runner.job import Kind
from .generate import GenerateJob

KINDS: dict[str, Kind] = {"generate": GenerateJob}
