"""``job: rollout``: makes training data for reinforcement learning. The samples of a row form a group, rated and recorded as a whole.

A completion's record is that of ``generate`` and the columns that a trainer needs: logprobs under the tempered, sampled and
reference distributions, the policy that sampled it, rewards and advantages. Knows no trainer; export/ maps records to theirs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.rollout import RolloutConfig
from ...configs.schema import GenerateConfig
from ...runner.core.errors import DROP
from ...runner.core.logprob_options import LogprobOptions
from ...runner.core.outcomes import Failure, Generated
from ...runner.core.requests import PromptChat, Request, Row, Sample, TokenInput
from ...runner.pipeline.job import ConfigFiles, Judge, Ratings, row_failure
from ...runner.templates.chat_messages import Message
from ...runner.templates.prompt_templates import AnyPrompt, Chat, PromptIds, Rendered
from ..rewards.functions import RewardFunction, find_functions, function_fingerprints, function_sources, require_columns
from ..rewards.group_judge import GroupJudge
from ..rewards.pool import RewardPool
from ..rewards.rated_text import rated_input
from ..rewards.reward_failures import RewardFailures
from ..statistics.advantages import DEGENERATE, LARGEST, advantages, best, is_degenerate, weighted
from ..statistics.kv_table import kv_closing
from ..statistics.rollout_stats import rollout_statistics
from ..statistics.rollout_table import rollout_closing
from .completion_columns import FLOATS, INTS
from .generate import GenerateJob
from .row_settings import RowSettings

_MASK = pa.list_(pa.int8())


@dataclass(frozen=True)
class RolloutJob(GenerateJob):
    """A rollout job; implements ``runner.pipeline.job.Job`` and ``Grouping``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_columns(self._functions, self.parts.columns)

    @staticmethod
    def check(config: GenerateConfig, columns: Collection[str]) -> None:
        """Checks the templates as for completions, and imports the reward functions once, before any file is opened."""
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
        """The figures that the engine computes."""
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
    def samples(self) -> int | None:
        """The number of records a row, None where rows bring it: one where the best sample is kept."""
        return 1 if self.config.select == "best" else super().samples

    @property
    def grouping(self) -> "RolloutJob":
        """The job itself: a row's samples are recorded together."""
        return self

    def fingerprints(self) -> dict[str, str]:
        """Returns what each reward function computes by, as a part of the run's identity."""
        return {f"rewards.{name}": fingerprint for name, fingerprint in function_fingerprints(self._functions).items()}

    def config_files(self) -> ConfigFiles:
        """Returns the files of reward functions that the config names by a path, and what they import from beside them."""
        return function_sources(self._functions)

    def judge(self) -> Judge | None:
        """Returns the judge that calls reward functions in worker processes and adds what reward models gave; None without rewards."""
        if not self.config.rewards:
            return None
        failures = RewardFailures()
        pool = RewardPool(self._functions, failures=failures) if self._functions else None
        return GroupJudge(pool, self._prompt, self._said, self.config.rewards, failures, self.parts.columns)

    def rated_inputs(self, request: Request, outcome: Generated) -> list[TokenInput | str]:
        """Returns what each reward model reads of a completion: the prompt, and the turn that reward functions see."""
        turn = self._said(request, outcome)
        return [rated_input(model, request, turn) for model in self.parts.reward_models]

    def _request(self, row: Row, asked: RowSettings, rendered: AnyPrompt, samples: tuple[Sample, ...]) -> Request:
        """Returns a request that remembers its chat where reward models are to read it."""
        request = super()._request(row, asked, rendered, samples)
        if not self.parts.reward_models or not isinstance(rendered, Chat):
            return request
        chat = PromptChat(
            tuple(rendered.messages), rendered.prefill or "", {**self.config.prompt.chat_template_args, **asked.template_variables}
        )
        return replace(request, work=replace(request.work, chat=chat))

    def _prompt(self, row: Row) -> Rendered:
        prompt = self.rows.settings(row).prompt
        assert not isinstance(prompt, PromptIds), "only lines of a Batch file are token ids"
        return prompt

    def _said(self, request: Request, outcome: Generated) -> Message:
        """Returns a completion as the turn that reward functions see: without reasoning, and with its calls."""
        text = self.completion(request, outcome, self.parts.tokenizer.offsets(outcome.ids))
        return self.answers.turn(request, outcome, text)

    # --------------------------------------------------------------------------------------------- outcomes -> records

    @property
    def differs(self) -> bool:
        """True: sampled_logprobs always is a column, so that trainers find it."""
        return True

    def fields(self) -> list[pa.Field]:
        """Returns the columns of a completion, with those of a rollout inserted."""
        config, fields = self.config, super().fields()
        _insert_after(fields, "row", ("round", pa.int32()))
        _insert_after(fields, "input" if self.parts.kept is not None else "key", ("group_id", pa.string()))
        _insert_after(fields, "completion_ids", ("completion_mask", _MASK))
        _insert_after(fields, "logprobs", ("tempered_logprobs", FLOATS))
        if config.logprobs.kept:
            _insert_after(fields, "sampled_logprobs", ("kept_ids", pa.list_(INTS)))
        if config.policy.reference is not None:
            _insert_after(fields, "sampled_logprobs", ("ref_logprobs", FLOATS), ("ref_tempered_logprobs", FLOATS))
        _insert_after(
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
        if config.select == "best":
            fields += [pa.field("group_sample", pa.int32()), pa.field("group_rewards", pa.list_(pa.float32()))]
        return fields

    def group(
        self, row: Row, request: Request, outcomes: Sequence[Generated], ratings: Ratings, newest: int
    ) -> list[dict[str, Any]] | Failure:
        """Returns the records of a group in the order of its ``outcomes``, or that of the best sample.

        Returns a failure if the config drops the group as stale or degenerate, or if no sample can be the best.
        """
        config, version = self.config, policy_version(outcomes)
        staleness = max(0, newest - version)
        limit = config.policy.max_staleness
        stale = limit is not None and staleness > limit
        if stale and config.policy.stale == "drop":
            reason = f"sampled at step {version} of the trainer, which is at {newest}: {staleness} behind"
            return row_failure(row, DROP, "StaleGroup", f"{reason}, and policy.max_staleness is {limit}")
        rewards = self._rewards(outcomes, ratings)
        if config.drop_degenerate and is_degenerate(rewards):
            distinct = {reward for reward in rewards if reward is not None}
            reason = f"all rewards are {distinct.pop():g}" if distinct else "no sample has a reward"
            return row_failure(row, DROP, DEGENERATE, f"{reason}, so every advantage would be 0")
        group_advantages = advantages(config.advantages, rewards) if rewards else []
        chosen = range(len(outcomes))
        if config.select == "best":
            if (at := best(rewards)) is None:
                return row_failure(row, "reward", "UnratedGroup", f"no sample has a reward, so none is the best{_first_reason(ratings)}")
            chosen = [at]
        records: list[dict[str, Any]] = []
        for i in chosen:
            outcome = outcomes[i]
            values = self.values(row, request, outcome) | {"staleness": staleness, "stale": stale}
            values |= {"group_sample": outcome.index, "group_rewards": rewards}
            if rewards:
                values |= {"reward": rewards[i], "advantage": group_advantages[i]}
                values["rewards"] = {name: each[i] for name, each in ratings.rewards.items()}
                values["reward_errors"] = {name: _reason(ratings, name, i, rewards[i]) for name in ratings.rewards}
            records.append({name: values[name] for name in self.schema.names})
        return records

    def values(self, row: Row, request: Request, outcome: Generated) -> dict[str, Any]:
        """Returns a completion's value for every column that does not depend on its group."""
        sampling, policy = request.work.sampling, outcome.policy
        masked = self.config.policy.truncated == "mask" and outcome.finish_reason == "length"
        return super().values(row, request, outcome) | {
            "round": row.round,
            "group_id": f"{row.round}-{row.key}",
            "completion_mask": np.full(len(outcome.ids), not masked, np.int8) & ~self.answers.forced(request, outcome),
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
        """Returns each sample's reward, None where no function rated it; an empty list where there are no reward functions."""
        if not ratings.rewards:
            return []
        sums = weighted(ratings.rewards, {reward.label: reward.weight for reward in self.config.rewards})
        zero = self.config.policy.truncated == "zero_reward"
        cut_off = [zero and outcome.finish_reason == "length" for outcome in outcomes]
        return [0.0 if cut and reward is not None else reward for cut, reward in zip(cut_off, sums, strict=True)]

    # ---------------------------------------------------------------------------------------- records -> statistics

    def statistics(self, run: Path) -> pa.Table:
        """Computes figures of groups, rewards and lengths, overall and by round and policy."""
        return rollout_statistics(run)

    def closing(self, statistics: pa.Table) -> str:
        """Returns the statistics as lines for the terminal."""
        return "\n".join(filter(None, (rollout_closing(statistics, self.config.policy.watch), kv_closing(statistics))))


def _reason(ratings: Ratings, name: str, sample: int, reward: float | None) -> str | None:
    """Returns why the function ``name`` did not rate the sample, or why its rating came to no ``reward``."""
    if reward is None and ratings.rewards[name][sample] is not None:
        return f"infinite: the weighted sum is beyond {LARGEST:.1e} either way"
    return ratings.errors[name][sample]


def _first_reason(ratings: Ratings) -> str:
    """Returns the first reason why a sample has no reward, as the end of a sentence; empty where functions left all samples out."""
    reasons = ((name, error) for name, errors in ratings.errors.items() for error in errors if error is not None)
    return next((f"; {name}: {error}" for name, error in reasons), "")


def _insert_after(fields: list[pa.Field], name: str, *new: tuple[str, pa.DataType]) -> None:
    """Inserts ``new`` columns after the one of this ``name``."""
    at = next(i for i, field in enumerate(fields) if field.name == name) + 1
    fields[at:at] = [pa.field(*field) for field in new]


def policy_version(outcomes: Sequence[Generated]) -> int:
    """Returns the one policy version that a group was sampled from."""
    versions = {0 if outcome.policy is None else outcome.policy.version for outcome in outcomes}
    assert len(versions) == 1, f"a group of several policy versions: {sorted(versions)}"
    return versions.pop()
