"""Loads models and checks how their rows may share a batch, in one step.

Every way to run a model begins here: a run on disk, rollouts in memory, a plan's trial, a replay, and lm-eval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ...configs.schema import BatchConfig
from ..checks.engine_setup import expected_setups, fit
from ..checks.row_limits import row_check
from ..core.logprob_options import LogprobOptions
from ..core.requests import AnyRequest
from ..engine.setup import Setup
from ..models.device_memory import memory_for
from ..models.loader import LanguageModel
from ..models.model_pool import ModelChoice, ModelPool, later_sizes, memory_shares, outlined
from ..pool_engine.reward_rater import SHARE, RewardRater
from .job import Job


@dataclass(slots=True, frozen=True)
class LoadedModels:
    """A loaded model and its engine setup, with those of a reference model and of reward models where there are any.

    ``about`` holds what a session notes of them in sessions.jsonl: versions, device, batch limits and the checks' results.
    """

    model: LanguageModel
    setup: Setup
    reference_model: LanguageModel | None
    reference: Setup | None
    about: dict[str, Any]
    reward_models: tuple[LanguageModel, ...] = ()
    rewards: tuple[Setup, ...] = ()

    @property
    def networks(self) -> list[Any]:
        """The networks in whose model files our kernels stand."""
        models = (self.model, self.reference_model, *self.reward_models)
        return [each.called_network for each in models if each is not None and each.substitutes]

    @property
    def float32(self) -> bool:
        """Returns whether float32's promises hold for the model's logprobs."""
        return self.model.dtype == "float32"

    def halved(self, times: int) -> Self:
        """Returns the same models with the rows and tokens of a batch halved ``times`` times."""
        setup = replace(self.setup, limits=self.setup.limits.halved(times))
        reference = self.reference and replace(self.reference, limits=self.reference.limits.halved(times))
        rewards = tuple(replace(each, limits=each.limits.halved(times)) for each in self.rewards)
        return replace(self, setup=setup, reference=reference, rewards=rewards)

    def row_check(self) -> Callable[[AnyRequest], str | None]:
        """Returns the function that says why a request is too large to run even alone; see ``row_limits.row_check``."""
        if self.reference is None or self.reference_model is None:
            return row_check(self.setup, self.model.checkpoint.config)
        return row_check(self.setup, self.model.checkpoint.config, (self.reference, self.reference_model.checkpoint.config))


def load_models(choices: Sequence[ModelChoice], batch: BatchConfig, wanted: LogprobOptions, pool: ModelPool | None = None) -> LoadedModels:
    """Loads the model, and after it the reference and the reward models that ``choices`` names, and finds the setup of each.

    Models that ``pool`` holds are not loaded again. Raises OutOfRoom where memory does not hold the weights, ModelError where a model
    cannot be loaded or deterministic mode cannot be kept.
    """
    pool = ModelPool() if pool is None else pool
    batch = batch.model_copy(update={"memory": batch.memory / pool.ranks.beside})
    memory = pool.ranks.size * min(pool.ranks.gather(memory_for(batch)))
    model, *others = pool.get(choices, memory)
    rewards = tuple(each for each in others if each.pooling is not None)
    other = next((each for each in others if each.pooling is None), None)
    fitted = fit(model, batch, wanted, other, rewards, choices[0].images)
    return LoadedModels(model, fitted.setup, other, fitted.reference, fitted.about, rewards, fitted.rewards)


def rater_of(models: LoadedModels, job: Job) -> RewardRater | None:
    """Returns what rates the job's completions with the reward models; None without any."""
    if not models.rewards or job.grouping is None:
        return None
    room = SHARE * models.setup.limits.kv_bytes
    setups = [replace(each, limits=replace(each.limits, kv_bytes=min(room, each.limits.kv_bytes))) for each in models.rewards]
    checks = [row_check(setup, model.checkpoint.config) for setup, model in zip(setups, models.reward_models, strict=True)]
    return RewardRater(setups, checks, job.grouping.rated_inputs)


def outline_models(choices: Sequence[ModelChoice], batch: BatchConfig, wanted: LogprobOptions) -> list[tuple[LanguageModel, Setup]]:
    """Returns each model without its weights, and the setup that ``load_models`` will come to as far as tiny twins show it.

    Raises OutOfRoom where memory does not hold the weights, ModelError where a checkpoint cannot be read.
    """
    left = memory_shares(choices, memory_for(batch))
    outlines = [outlined(*each) for each in zip(choices, left, later_sizes(choices, left), strict=True)]
    return list(zip(outlines, expected_setups(outlines, batch, wanted), strict=True))
