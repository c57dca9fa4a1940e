"""Lists the kinds of job by their names in a config. A kind is imported when it is asked for: a run has one of them."""

from collections.abc import Iterator, Mapping

from ..runner.pipeline.job import Kind

_NAMES = ("generate", "score", "rollout", "embed", "classify")


class _Kinds(Mapping[str, Kind]):
    def __getitem__(self, job: str) -> Kind:
        match job:
            case "generate":
                from .generate.generate import GenerateJob

                return GenerateJob
            case "score":
                from .score.score import ScoreJob

                return ScoreJob
            case "rollout":
                from .generate.rollout import RolloutJob

                return RolloutJob
            case "embed":
                from .embed.embed import EmbedJob

                return EmbedJob
            case "classify":
                from .classify.classify import ClassifyJob

                return ClassifyJob
            case _:
                raise KeyError(job)

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


KINDS: Mapping[str, Kind] = _Kinds()
