"""A run as a worker loads it: the job is made as the driver made it, then its models, and both must give the run's results.

In a group every rank does so, in step with the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...configs.rollout import RolloutConfig
from ...configs.schema import JobConfig
from ..cluster.description import RunDescription
from ..core.shard_layout import Layout
from ..engine.interface import EngineInterface
from ..images.sources import FileReader
from ..models.model_pool import ModelPool
from ..pipeline.job import Kind
from ..pipeline.loading import LoadedModels, load_models, rater_of
from ..pipeline.model_work import batch_of
from ..pipeline.run_spec import RunSpec
from ..policies.policy_engine import policy_engine_of, sampling_engine
from ..ranks.joined_group import require_alike
from ..ranks.model_split import TENSOR
from ..ranks.ranks import Ranks
from ..store.paths import RunPaths
from .local_config import LocalConfig, local_config
from .parcel_shelf import ParcelShelf
from .sent_policies import SentPolicies


class DifferentResults(Exception):
    """This worker would give other results than the run's driver, or cannot do the job at all. reasons: one line each."""

    def __init__(self, reasons: tuple[str, ...]):
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(slots=True, frozen=True)
class LoadedRun:
    """A run's job and its models."""

    config: JobConfig
    spec: RunSpec
    models: LoadedModels

    def engine(self, scratch: Path, layout: Layout, policies: SentPolicies | None = None) -> EngineInterface:
        """Returns what does the run's rows here. scratch: stands for the run directory. policies: None where the policy does not change."""
        models, spec = self.models, self.spec
        rater, setups = rater_of(models, spec.job), (models.setup, models.reference)
        if policies is not None and isinstance(self.config, RolloutConfig):
            number = lambda position: policies.number_of(layout.shard_of(position))  # noqa: E731
            return policy_engine_of(policies, spec.job.engine, *setups, self.config, layout, rater, policies.name_of, number)
        return sampling_engine(spec.job.engine, *setups, self.config, spec.checkpoint, RunPaths(scratch), layout, rater)


def loaded_run(
    described: RunDescription,
    kinds: Mapping[str, Kind],
    pool: ModelPool,
    scratch: Path,
    halved: int,
    shelf: ParcelShelf | None = None,
    given_up: Callable[[], bool] = lambda: False,
    files: FileReader | None = None,
) -> LoadedRun:
    """Makes a run's job and loads its models, on all ranks of the pool. halved: how often batches are halved. files: see
    ``PictureSources``. Others: ``local_config``.

    Raises DifferentResults where the run's identity is another one here, or the job is none for a group; RunGivenUp; BulkError as a run
    does.
    """
    found: list[LocalConfig] = []
    with pool.ranks.while_loading():
        require_alike(pool.ranks)
        adapters = None if pool.ranks.several else shelf
        pool.ranks.jointly(lambda: found.append(local_config(described, scratch, adapters, given_up, pool.folder)))
        return _loaded(described, found[0], kinds, pool, halved, files)


def _loaded(
    described: RunDescription, local: LocalConfig, kinds: Mapping[str, Kind], pool: ModelPool, halved: int, files: FileReader | None
) -> LoadedRun:
    ranks, config = pool.ranks, local.config
    specs: list[RunSpec] = []

    def identity() -> dict[str, Any]:
        specs.append(local.spec(described.scan, kinds[config.job], files))
        return local.identity(specs[0])

    identities = ranks.jointly(identity)
    (spec,) = specs
    if reasons := _refusals(config, spec) if ranks.several else ():
        raise DifferentResults(tuple(reasons))
    _require_same(described.identity, identities, ranks)
    batch = batch_of(config)
    if ranks.several:
        batch = batch.model_copy(update={"prefix_cache": None})
    models = load_models(spec.models(config), batch, spec.job.wanted, pool)
    if config.batch.deterministic and models.model.split.way == TENSOR:
        raise DifferentResults((_OTHER_BITS,))
    return LoadedRun(config, spec, models.halved(halved) if halved else models)


_OTHER_BITS = (
    "batch.deterministic: mlx-lm splits this model by tensor, whose sums have other bits than one machine's; set batch.deterministic to "
    "false, or use a worker without --group"
)


def _require_same(theirs: Mapping[str, object], ours: list[dict[str, Any]], ranks: Ranks) -> None:
    """Raises DifferentResults where the run's identity is another one on this machine, or on one of the group."""
    found: dict[tuple[str, str], list[int]] = {}  # by key and value: the ranks that have it
    for rank, identity in enumerate(ours):
        for key in {**theirs, **identity}:
            if theirs.get(key) != identity.get(key):
                found.setdefault((key, repr(identity.get(key))), []).append(rank)
    if found:
        reasons = [f"{key}: the run has {theirs.get(key)!r}, {_who(ranks, own)} {value}" for (key, value), own in found.items()]
        if ranks.several and any(key == "kernels" for key, _ in found):
            reasons.append("a group runs without the kernels for CPUs: start the run with MLX_BULK_CPU=generic")
        raise DifferentResults(tuple(reasons))


def _who(ranks: Ranks, some: list[int]) -> str:
    if len(some) == ranks.size:
        return "this group" if ranks.several else "this worker"
    return " and ".join(map(ranks.name_of, some))


def _refusals(config: JobConfig, spec: RunSpec) -> list[str]:
    """Returns what of a job a group cannot do, one line each."""
    found: list[str] = []
    if config.job not in ("generate", "rollout", "score"):
        found.append(f"job: a group does generate, rollout and score, not {config.job}")
    if spec.job.pooling is not None:
        found.append("job: a group runs no pooling models")
    if any(choice.images is not None for choice in spec.models(config)):
        found.append("prompt.images: a group reads text alone")
    if spec.checkpoint.adapter is not None:
        found.append("model.adapter: a group takes no adapters; merge it into the model (mlx_lm.fuse)")
    if spec.reference is not None:
        found.append("reference: a group runs one model; score with the reference in a run of its own")
    if config.batch.kv_bits is not None:
        found.append("batch.kv_bits: a group keeps keys and values as they are; set it to null")
    if "grammar_complete" in spec.job.schema.names:
        found.append("structured output: a group draws without grammars")
    if isinstance(config, RolloutConfig) and config.policy.reference is not None:
        found.append("policy.reference: a group runs one model; score with the reference in a run of its own")
    if isinstance(config, RolloutConfig) and config.policy.watch is not None:
        found.append("policy.watch: a group takes no new policies; set it to null")
    if spec.reward_models:
        found.append("rewards: a group runs no reward models; use functions")
    return [f"{line} (a worker without --group can do it)" for line in dict.fromkeys(found)]
