"""GRPO on records of rollouts: a batch of them as arrays, the logprobs of a network, the clipped loss. Knows no files and no steps."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

COLUMNS = ["prompt_ids", "completion_ids", "completion_mask", "tempered_logprobs", "temperature", "advantage", "reward", "policy_version"]


@dataclass(slots=True, frozen=True)
class Batch:
    """B records, padded on the right to T + 1 ids. Of the T tokens behind the first:

        ids    p p p c c c .      prompt, completion, padding
        mask     0 0 1 1 1 0      1: sampled by the policy and trained on
        old      0 0 x x x 0      logprobs as they were sampled

    ids: [B, T + 1] int32. mask, old: [B, T] float32. advantages, temperatures: [B, 1] float32.
    """

    ids: mx.array
    mask: mx.array
    old: mx.array
    advantages: mx.array
    temperatures: mx.array


def batch_of(records: list[dict[str, Any]]) -> Batch:
    """Records of a run (``COLUMNS``) as arrays."""
    length = max(len(record["prompt_ids"]) + len(record["completion_ids"]) for record in records)
    ids = np.zeros((len(records), length), np.int32)
    mask, old = np.zeros((2, len(records), length - 1), np.float32)
    for row, record in enumerate(records):
        prompt, completion = record["prompt_ids"], record["completion_ids"]
        ids[row, : len(prompt) + len(completion)] = prompt + completion
        sampled = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        mask[row, sampled] = record["completion_mask"]
        old[row, sampled] = record["tempered_logprobs"]
    column = {name: mx.array([[record[name]] for record in records], mx.float32) for name in ("advantage", "temperature")}
    return Batch(mx.array(ids), mx.array(mask), mx.array(old), column["advantage"], column["temperature"])


def logprobs(model: nn.Module, batch: Batch) -> mx.array:
    """[B, T]: log_softmax of logits / temperature at each id behind the first. Padding is on the right, where nothing attends to it."""
    logits = model(batch.ids[:, :-1]).astype(mx.float32) / batch.temperatures[..., None]
    chosen = mx.take_along_axis(logits, batch.ids[:, 1:, None], axis=-1)[..., 0]
    return chosen - mx.logsumexp(logits, axis=-1)


def ratios(model: nn.Module, batch: Batch) -> mx.array:
    """[B, T]: the probability of each sampled token now, in units of what it was when it was sampled; 1 where the mask is 0."""
    return mx.exp((logprobs(model, batch) - batch.old) * batch.mask)


def loss(model: nn.Module, batch: Batch, clip: float = 0.2) -> mx.array:
    """The mean over tokens of -min(r A, clip(r, 1 - clip, 1 + clip) A): PPO's objective with a group's advantages (DeepSeekMath, eq. 3)."""
    ratio = ratios(model, batch)
    gain = mx.minimum(ratio * batch.advantages, mx.clip(ratio, 1 - clip, 1 + clip) * batch.advantages)
    return -(gain * batch.mask).sum() / batch.mask.sum()
