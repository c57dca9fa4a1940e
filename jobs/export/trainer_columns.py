"""Renames a rollout run's columns for trainers: TRL, verl, prime-rl and verifiers. Changes shapes, computes nothing.

Works on record batches of N records as they are stored. docs/rollouts.md explains each name. The names are those of trl 1.16
(``rollout_func``), verl 0.9.1 (``DataProto``), prime-rl of 2026-08 (``TrainingSample``) and verifiers 0.4.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...runner.core.arrays import Bools

Columns = dict[str, pa.Array]
Values = NDArray[Any]


@dataclass(slots=True, frozen=True)
class Ragged:
    """Lists of different lengths, one a record. values [T]: all lists joined; lengths [N], which sum to T."""

    values: Values
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, lists: pa.Array) -> "Ragged":
        """Converts a column of lists without nulls."""
        assert not lists.null_count
        return cls(lists.flatten().to_numpy(zero_copy_only=False), np.diff(lists.offsets.to_numpy()).astype(np.int64))

    @property
    def ends(self) -> NDArray[np.int64]:
        """The index after the last value of each list [N]."""
        return np.cumsum(self.lengths)

    def lists(self, kind: pa.DataType) -> pa.ListArray:
        """Converts to a column of lists of ``kind``."""
        return pa.ListArray.from_arrays(pa.array(np.append(0, self.ends).astype(np.int32)), pa.array(self.values, kind))

    def append(self, where: Bools, value: float) -> "Ragged":
        """Returns the lists with ``value`` appended to those ``where`` [N]."""
        return Ragged(np.insert(self.values, self.ends[where], value), self.lengths + where)

    def after(self, first: "Ragged") -> "Ragged":
        """Returns the lists of ``first``, each followed by this one's."""
        out = np.empty(len(first.values) + len(self.values), np.result_type(first.values, self.values))
        out[np.arange(len(first.values)) + np.repeat(self.ends - self.lengths, first.lengths)] = first.values
        out[np.arange(len(self.values)) + np.repeat(first.ends, self.lengths)] = self.values
        return Ragged(out, first.lengths + self.lengths)

    def fill(self, each: Values) -> "Ragged":
        """Returns lists of the same lengths, each full of one value of ``each`` [N]."""
        return Ragged(np.repeat(each, self.lengths), self.lengths)


def trl(batch: pa.RecordBatch, eos: int | None) -> Columns:
    """Returns the fields of a ``rollout_func`` of TRL's GRPOTrainer: prompt_ids, completion_ids, logprobs, env_mask, and extra ones.

    TRL takes a completion for truncated unless its last id is EOS or padding. So a completion that a stop string or stop id ended
    gets the id ``eos`` appended, with logprob 0 and env_mask 0: TRL then takes it for whole, and does not train on that token.
    Without ``eos`` nothing is appended.
    """
    ids, logprobs, mask = (Ragged.of(batch.column(name)) for name in ("completion_ids", "sampled_logprobs", "completion_mask"))
    if eos is not None and len(batch):
        where = batch.column("stop_reason").is_valid().to_numpy(zero_copy_only=False) & (ids.values[ids.ends - 1] != eos)
        ids, logprobs, mask = ids.append(where, eos), logprobs.append(where, 0.0), mask.append(where, 0)
    return {
        **_identity(batch),
        "prompt": batch.column("prompt"),
        "prompt_ids": batch.column("prompt_ids"),
        "completion_ids": ids.lists(pa.int32()),
        "logprobs": logprobs.lists(pa.float32()),
        "env_mask": mask.lists(pa.int8()),
        **_present(batch, reward="reward", advantage="advantage"),
    }


def verl(batch: pa.RecordBatch, eos: int | None) -> Columns:
    """Returns fields of verl's DataProto, unpadded: uid, prompts, responses, response_mask, rollout_log_probs, old_log_probs, rm_scores.

    rm_scores holds the reward at the last token and 0 before it, null for a sample without a reward. advantages holds the sample's
    advantage at each token that is trained on. ref_log_prob is there if the run has a reference.
    """
    mask = Ragged.of(batch.column("completion_mask"))
    columns = {
        **_identity(batch),
        "uid": batch.column("group_id"),
        "prompts": batch.column("prompt_ids"),
        "responses": batch.column("completion_ids"),
        "response_mask": batch.column("completion_mask"),
        "rollout_log_probs": batch.column("sampled_logprobs"),
        "old_log_probs": batch.column("tempered_logprobs"),
        **_present(batch, ref_log_prob="ref_tempered_logprobs"),
    }
    if "reward" in batch.schema.names:
        reward = batch.column("reward")
        scores = np.zeros(len(mask.values), np.float32)
        scores[mask.ends - 1] = reward.fill_null(0.0).to_numpy()
        columns["rm_scores"] = _null_where(
            Ragged(scores, mask.lengths).lists(pa.float32()), ~reward.is_valid().to_numpy(zero_copy_only=False)
        )
    if "advantage" in batch.schema.names:
        columns["advantages"] = Ragged(_on_tokens(batch, mask), mask.lengths).lists(pa.float32())
    return columns


def prime_rl(batch: pa.RecordBatch, eos: int | None) -> Columns:
    """Returns prime-rl's TrainingSample: token_ids, mask, logprobs, temperatures, env_name, ref_logprobs, advantages.

    Each covers prompt and completion; logprobs and advantages are 0 on the prompt, as in verifiers' branches.
    """
    prompt, ids, mask = (Ragged.of(batch.column(name)) for name in ("prompt_ids", "completion_ids", "completion_mask"))
    tokens = ids.after(prompt)
    zeros = Ragged(np.zeros(len(prompt.values), np.float32), prompt.lengths)

    def with_prompt(values: Values) -> pa.ListArray:
        return Ragged(values, ids.lengths).after(zeros).lists(pa.float32())

    columns = {
        **_identity(batch),
        "token_ids": tokens.lists(pa.int32()),
        "mask": Ragged(mask.values != 0, mask.lengths).after(Ragged(zeros.values != 0, prompt.lengths)).lists(pa.bool_()),
        "logprobs": with_prompt(Ragged.of(batch.column("sampled_logprobs")).values),
        "temperatures": tokens.fill(batch.column("temperature").to_numpy()).lists(pa.float32()),
        "env_name": pa.array(["mlx-bulk"] * len(batch), pa.string()),
    }
    if "ref_tempered_logprobs" in batch.schema.names:
        columns["ref_logprobs"] = with_prompt(Ragged.of(batch.column("ref_tempered_logprobs")).values)
    if "advantage" in batch.schema.names:
        columns["advantages"] = with_prompt(_on_tokens(batch, mask))
    return columns


def verifiers(batch: pa.RecordBatch, eos: int | None) -> Columns:
    """Returns the tokens of a turn in verifiers: prompt_ids, completion_ids, completion_logprobs; and the reward of its trace."""
    return {
        **_identity(batch),
        "prompt_ids": batch.column("prompt_ids"),
        "completion_ids": batch.column("completion_ids"),
        "completion_logprobs": batch.column("sampled_logprobs"),
        "completion_mask": batch.column("completion_mask"),
        "is_truncated": batch.column("truncated"),
        **_present(batch, reward="reward", advantage="advantage"),
    }


TRAINERS: dict[str, Callable[[pa.RecordBatch, int | None], Columns]] = {
    "trl": trl,
    "verl": verl,
    "prime-rl": prime_rl,
    "verifiers": verifiers,
}


@dataclass(slots=True)
class TrainerBatches:
    """Converts batches to a trainer's columns. appended: completions that got an EOS appended so far."""

    kind: str
    eos: int | None
    appended: int = field(default=0, init=False)

    def batches(self, records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields each of the records' batches with the trainer's columns."""
        for batch in records:
            columns = TRAINERS[self.kind](batch, self.eos)
            if self.kind == "trl":
                self.appended += len(columns["env_mask"].flatten()) - len(batch.column("completion_mask").flatten())
            yield pa.RecordBatch.from_pydict(columns)


def _identity(batch: pa.RecordBatch) -> Columns:
    """Returns the columns that identify records, groups and policies."""
    return {name: batch.column(name) for name in ("row", "key", "round", "sample", "group_id", "policy_version")}


def _present(batch: pa.RecordBatch, **names: str) -> Columns:
    """Returns the columns that the records have, under new names."""
    return {new: batch.column(own) for new, own in names.items() if own in batch.schema.names}


def _on_tokens(batch: pa.RecordBatch, mask: Ragged) -> NDArray[np.float32]:
    """Returns the advantage of each token: its sample's where the mask is 1, else 0."""
    return mask.fill(batch.column("advantage").to_numpy().astype(np.float32)).values * (mask.values != 0)


def _null_where(lists: pa.ListArray, where: Bools) -> pa.ListArray:
    return pa.ListArray.from_arrays(lists.offsets, lists.values, mask=pa.array(where))
