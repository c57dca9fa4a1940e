"""``job: rollout``: training data for reinforcement learning. The samples of a row make a group, rated and recorded as a whole.

A completion is a record as in ``generate``, with what a trainer needs beside it: the logprobs under every distribution that it
may compare with, the policy that sampled it, rewards and advantages. Knows no trainer; mappings to theirs are elsewhere.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig
from ...runner.core.errors import DROP
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.requests import Failure, Generated, Request, Row
from ...runner.pipeline.job import Judge, Ratings, row_failure
from ..rewards.functions import RewardFunction, find_functions, function_fingerprints, require_columns
from ..rewards.group_judge import GroupJudge
from ..rewards.pool import RewardPool
from ..statistics.advantages import DEGENERATE, LARGEST, advantages, is_degenerate, weighted
from ..statistics.rollout_stats import rollout_statistics
from ..statistics.rollout_table import rollout_closing
from .generate import FLOATS, INTS, GenerateJob

_MASK = pa.list_(pa.int8())


@dataclass(frozen=True)
class RolloutJob(GenerateJob):
    """A rollout job, as ``runner.job.Job`` and ``runner.job.Grouping`` describe it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_columns(self._functions, self.parts.columns)

    @staticmethod
    def check(config: GenerateConfig, columns: Collection[str]) -> None:
        """As for completions; and imports the reward functions, once, before any file is opened."""
        assert isinstance(config, RolloutConfig)
        GenerateJob.check(config, columns)
        if not columns:
            find_functions(config.rewards)

    @cached_property
    def config(self) -> RolloutConfig:
        """The job's settings."""
        assert isinstance(self.parts.config, RolloutConfig)
        return self.parts.config

    @cached_property
    def _functions(self) -> list[RewardFunction]:
        return find_functions(self.config.rewards)

    @property
    def wanted(self) -> LogprobOptions:
        """Which figures the engine is to compute."""
        logprobs = self.config.logprobs
        return LogprobOptions(
            logprobs.prompt,
            logprobs.top,
            logprobs.stats,
            tempered=True,
            kept=logprobs.kept,
            reference=self.config.policy.reference is not None,
        )

    @property
    def grouping(self) -> "RolloutJob":
        """The job itself: a row's samples are recorded together."""
        return self

    def fingerprints(self) -> dict[str, str]:
        """The contents of the reward functions' files."""
        return {f"rewards.{name}": f"sha256 {digest}" for name, digest in function_fingerprints(self._functions).items()}

    def judge(self) -> Judge | None:
        """The reward functions in processes of their own; None where the config has none."""
        return GroupJudge(RewardPool(self._functions), self.render, self._text) if self._functions else None

    def _text(self, request: Request, outcome: Generated) -> str:
        return self.completion(request, outcome, self.parts.tokenizer.offsets(outcome.ids))

    # --------------------------------------------------------------------------------------------- outcomes -> records

    @property
    def differs(self) -> bool:
        """True: what was sampled from always has its own column, so that trainers find it."""
        return True

    def fields(self) -> list[pa.Field]:
        """The columns of a completion, and of a rollout beside them."""
        config, fields = self.config, super().fields()
        _behind(fields, "row", ("round", pa.int32()))
        _behind(fields, "input" if self.parts.kept is not None else "key", ("group_id", pa.string()))
        _behind(fields, "completion_ids", ("completion_mask", _MASK))
        _behind(fields, "logprobs", ("tempered_logprobs", FLOATS))
        if config.logprobs.kept:
            _behind(fields, "sampled_logprobs", ("kept_ids", pa.list_(INTS)))
        if config.policy.reference is not None:
            _behind(fields, "sampled_logprobs", ("ref_logprobs", FLOATS), ("ref_tempered_logprobs", FLOATS))
        _behind(
            fields, "seed", *[(name, pa.float64()) for name in ("temperature", "top_p")], ("top_k", pa.int32()), ("min_p", pa.float64())
        )
        fields += [pa.field("policy_version", pa.int32()), pa.field("policy_sha", pa.string())]
        if config.policy.max_staleness is not None:
            fields += [pa.field("staleness", pa.int32()), pa.field("stale", pa.bool_())]
        if config.rewards:
            labels = [reward.label for reward in config.rewards]
            fields.append(pa.field("reward", pa.float32()))
            fields.append(pa.field("rewards", pa.struct([(label, pa.float32()) for label in labels])))
            fields.append(pa.field("reward_errors", pa.struct([(label, pa.string()) for label in labels])))
            fields += [pa.field("advantage", pa.float32())] if config.advantages != "none" else []
        return fields

    def group(
        self, row: Row, request: Request, outcomes: Sequence[Generated], ratings: Ratings, newest: int
    ) -> list[dict[str, Any]] | Failure:
        """The records of a group in the order of its ``outcomes``; a failure where it is stale or degenerate, and those are dropped."""
        config, version = self.config, policy_version(outcomes)
        behind = max(0, newest - version)
        most = config.policy.max_staleness
        stale = most is not None and behind > most
        if stale and config.policy.stale == "drop":
            said = f"sampled at step {version} of the trainer, which is at {newest}: {behind} behind, and policy.max_staleness is {most}"
            return row_failure(row, DROP, "StaleGroup", said)
        rewards = self._rewards(outcomes, ratings)
        if config.drop_degenerate and is_degenerate(rewards):
            given = {reward for reward in rewards if reward is not None}
            said = f"all rewards are {given.pop():g}" if given else "no sample has a reward"
            return row_failure(row, DROP, DEGENERATE, f"{said}, so every advantage would be 0")
        found = advantages(config.advantages, rewards) if rewards else []
        records: list[dict[str, Any]] = []
        for i, outcome in enumerate(outcomes):
            everything = self.values(row, request, outcome) | {"staleness": behind, "stale": stale}
            if rewards:
                everything |= {"reward": rewards[i], "advantage": found[i]}
                everything["rewards"] = {name: values[i] for name, values in ratings.rewards.items()}
                everything["reward_errors"] = {name: _reason(ratings, name, i, rewards[i]) for name in ratings.rewards}
            records.append({name: everything[name] for name in self.schema.names})
        return records

    def values(self, row: Row, request: Request, outcome: Generated) -> dict[str, Any]:
        """All that is known of a completion by itself, by the names of columns."""
        sampling, policy = request.work.sampling, outcome.policy
        masked = self.config.policy.truncated == "mask" and outcome.finish_reason == "length"
        return super().values(row, request, outcome) | {
            "round": row.round,
            "group_id": f"{row.round}-{row.key}",
            "completion_mask": np.full(len(outcome.ids), not masked, np.int8),
            "tempered_logprobs": outcome.tempered_logprobs,
            "kept_ids": outcome.kept_ids,
            "ref_logprobs": outcome.ref_logprobs,
            "ref_tempered_logprobs": outcome.ref_tempered_logprobs,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "policy_version": 0 if policy is None else policy.version,
            "policy_sha": None if policy is None else policy.sha,
        }

    def _rewards(self, outcomes: Sequence[Generated], ratings: Ratings) -> list[float | None]:
        """Each sample's reward, None where no function rated it, whatever it ended by; empty where there are no reward functions."""
        if not ratings.rewards:
            return []
        found = weighted(ratings.rewards, {reward.label: reward.weight for reward in self.config.rewards})
        zero = self.config.policy.truncated == "zero_reward"
        cut_off = [zero and outcome.finish_reason == "length" for outcome in outcomes]
        return [0.0 if cut and reward is not None else reward for cut, reward in zip(cut_off, found, strict=True)]

    # ---------------------------------------------------------------------------------------- records -> statistics

    def statistics(self, run: Path) -> pa.Table:
        """Groups, rewards and lengths, overall and by round and policy."""
        return rollout_statistics(run)

    def closing(self, statistics: pa.Table) -> str:
        """The statistics as lines for the terminal."""
        return rollout_closing(statistics, self.config.policy.watch)


def _reason(ratings: Ratings, name: str, sample: int, reward: float | None) -> str | None:
    """Why the function ``name`` gave the sample nothing, or why what it gave came to no ``reward``."""
    if reward is None and ratings.rewards[name][sample] is not None:
        return f"infinite: the weighted sum is beyond {LARGEST:.1e} either way"
    return ratings.errors[name][sample]


def _behind(fields: list[pa.Field], name: str, *new: tuple[str, pa.DataType]) -> None:
    """Puts ``new`` columns behind the one of this ``name``."""
    at = next(i for i, field in enumerate(fields) if field.name == name) + 1
    fields[at:at] = [pa.field(*field) for field in new]


def policy_version(outcomes: Sequence[Generated]) -> int:
    """The one version that a group was sampled from."""
    versions = {0 if outcome.policy is None else outcome.policy.version for outcome in outcomes}
    assert len(versions) == 1, f"a group of several policy versions: {sorted(versions)}"
    return versions.pop()
