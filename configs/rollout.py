"""The settings of a rollout job: groups of samples, their rewards and advantages, and the policy that samples.

Bounds and contradictions as in ``schema.py``. Knows only the names of reward functions and adapters.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from .fields import (
    FREE,
    FROZEN_IF_SET,
    Count,
    CountOrZero,
    Expected,
    Flag,
    NameOrNull,
    Section,
    contradiction,
)
from .logprobs import LogprobsConfig
from .rewards import RewardConfig
from .sampling import FILTER_NAMES, FILTERS, SamplingConfig
from .schema import GenerateConfig, ModelConfig


class RolloutSampling(SamplingConfig):
    """How the samples of a group are drawn."""

    n: Count = Field(default=8, description="Samples a prompt, which make a group.")

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.temperature == 0:
            raise contradiction(
                "temperature",
                "found 0; expected a number above 0, since greedy samples of a group are all alike; use job: generate for those",
            )
        return self


class RolloutLogprobs(LogprobsConfig):
    """Which logprobs the records hold beside those that a trainer needs, which are always there."""

    kept: Flag = Field(default=False, description=f"The ids that the filters ({FILTER_NAMES}) left to draw from, for each token.")

    @model_validator(mode="after")
    def _has_the_tokens(self) -> Self:
        if not self.tokens:
            raise contradiction("tokens", "found false; expected true, since trainers need the logprob of each token; remove it")
        return self


class PolicyConfig(Section):
    """The policy that samples, where newer ones come from, and what is done with samples of an older one."""

    adapter: Annotated[NameOrNull, FREE] = Field(default=None, description="Fixed LoRA or DoRA adapter: a folder or a repo id.")
    watch: Annotated[NameOrNull, FREE] = Field(
        default=None, description="Folder that a trainer writes policies to (step_000012/…); the newest complete one is loaded."
    )
    update: Literal["shard", "round"] = Field(
        default="shard", description="Where a newer policy may take over: before a shard, or a round."
    )
    max_staleness: Annotated[CountOrZero | None, Expected("a whole number of trainer steps of at least 0, or null")] = Field(
        default=None, description="Most trainer steps by which a group's policy may be behind the newest when it is finished."
    )
    stale: Literal["mark", "drop"] = Field(
        default="mark", description="A group beyond max_staleness is marked in its records, or dropped: errors/ names it, verify counts it."
    )
    truncated: Literal["keep", "mask", "zero_reward"] = Field(
        default="keep", description="Samples that ended by length are kept as they are, get completion_mask 0, or get reward 0."
    )
    reference: NameOrNull = Field(
        default=None, description="Adds ref_logprobs: of base (the policy with its adapter off), or of another model by its path."
    )

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        if self.adapter is not None and self.watch is not None:
            raise contradiction("watch", "expected null, since policy.adapter is fixed; remove one of the two")
        if self.stale == "drop" and self.max_staleness is None:
            raise contradiction(
                "stale", "found drop; expected mark, since policy.max_staleness is null: set it to a number of trainer steps"
            )
        return self


class RolloutConfig(GenerateConfig):
    """A job that makes training data for reinforcement learning."""

    job: Literal["rollout"] = Field(description="What the job does.")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    sampling: RolloutSampling = Field(  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
        default=RolloutSampling(), description="How the samples of a group are drawn."
    )
    logprobs: RolloutLogprobs = Field(  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
        default=RolloutLogprobs(), description="Which logprobs the records hold."
    )
    rewards: Annotated[
        list[RewardConfig], Expected("a list of mappings with fn or model, weight, name, args, timeout, memory, on_error: [{fn: length}]")
    ] = Field(
        default=[],
        description="Reward functions in TRL's signature (fn) and reward models (model), with weight (1), name, on_error; functions also "
        "with args, timeout (60 seconds), memory.",
    )
    advantages: Literal["grpo", "centered", "rloo", "none"] = Field(
        default="grpo", description="How rewards become advantages: grpo is (r - mean) / (std + 1e-4) in the group."
    )
    select: Annotated[Literal["all", "best"], FROZEN_IF_SET] = Field(
        default="all",
        description="all: each sample has a record; best: a group has one, of its sample with the highest reward (the first of equals).",
    )
    drop_degenerate: Flag = Field(
        default=False, description="Groups whose rewards are all equal are dropped: errors/ names them, verify counts them."
    )
    policy: PolicyConfig = Field(default=PolicyConfig(), description="The policy that samples, and how it changes.")
    rounds: Annotated[Count, FREE] = Field(default=1, description="Passes over the rows; raising it later extends the run.")

    @property
    def loaded(self) -> ModelConfig:
        """The model with the policy's adapter, if that is fixed."""
        return self.model.model_copy(update={"adapter": self.policy.adapter})

    @property
    def adapter_key(self) -> str:
        """The key of that adapter, for messages."""
        return "policy.adapter"

    @property
    def reference(self) -> ModelConfig | None:
        """The reference model; None without one, or if the reference is this model with its adapter off."""
        if self.policy.reference in (None, "base"):
            return None
        return self.model.model_copy(update={"path": self.policy.reference, "revision": None, "adapter": None})

    @property
    def reward_models(self) -> dict[str, ModelConfig]:
        """The models among the rewards, by their keys in the config."""
        return {f"rewards[{number}].model": reward.model for number, reward in enumerate(self.rewards) if reward.model is not None}

    @property
    def reference_key(self) -> str:
        """The key of the reference model in the config."""
        return "policy.reference"

    @model_validator(mode="after")
    def _policy_fits(self) -> Self:
        if self.model.adapter is not None:
            raise contradiction("model.adapter", "expected null, since a rollout's adapter is its policy's; set policy.adapter instead")
        if self.policy.watch is not None and self.batch.deterministic:
            raise contradiction(
                "policy.watch", "expected null, since batch.deterministic promises bits that no newer policy has; remove one"
            )
        return self

    @model_validator(mode="after")
    def _rewards_agree(self) -> Self:
        labels = [reward.label for reward in self.rewards]
        for index, label in enumerate(labels):
            if label in labels[:index]:
                raise contradiction(f"rewards[{index}].name", f"found {label} twice; expected a name of its own for each: set name")
        if self.drop_degenerate and not self.rewards:
            raise contradiction("drop_degenerate", "found true; expected false, since there are no rewards; give rewards, or remove it")
        if self.policy.truncated == "zero_reward" and not self.rewards:
            raise contradiction("policy.truncated", "found zero_reward; expected keep or mask, since there are no rewards; give rewards")
        if self.select == "best" and not self.rewards:
            raise contradiction("select", "found best; expected all, since there are no rewards to choose by; give rewards, or remove it")
        if self.select == "best" and self.sampling.n == 1 and "n" not in self.sampling.columns:
            raise contradiction("sampling.n", "found 1; expected at least 2, since select: best chooses among a group's samples")
        compares = self.rewards and self.advantages != "none"
        if compares and self.sampling.n == 1 and "n" not in self.sampling.columns:
            raise contradiction(
                "sampling.n",
                f"found 1; expected at least 2, since advantages: {self.advantages} compares a group's samples; or set advantages to none",
            )
        return self

    @model_validator(mode="after")
    def _filters_to_keep(self) -> Self:
        sampling = self.sampling
        filtering = any(name in sampling.columns or getattr(sampling, name) != off for name, off in FILTERS.items())
        if self.logprobs.kept and not filtering:
            raise contradiction(
                "logprobs.kept", f"found true; expected false, since none of {', '.join(FILTERS)} leaves a token out; remove it"
            )
        return self
