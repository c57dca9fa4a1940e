"""Tests the trainers' columns: a few lines of each trainer's own use of them give back the recorded values."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.export.trainer_columns import TRAINERS, Ragged, TrainerBatches

EOS = 2
FLOATS, INTS = pa.list_(pa.float32()), pa.list_(pa.int32())
TYPES: dict[str, pa.DataType] = {
    "row": pa.int64(),
    "round": pa.int32(),
    "key": pa.string(),
    "group_id": pa.string(),
    "sample": pa.int32(),
    "prompt": pa.large_string(),
    "stop_reason": pa.string(),
    "truncated": pa.bool_(),
    "prompt_ids": INTS,
    "completion_ids": INTS,
    "completion_mask": pa.list_(pa.int8()),
    "tempered_logprobs": FLOATS,
    "sampled_logprobs": FLOATS,
    "ref_tempered_logprobs": FLOATS,
    "temperature": pa.float64(),
    "policy_version": pa.int32(),
    "reward": pa.float32(),
    "advantage": pa.float32(),
}
SCHEMA = pa.schema(TYPES)


def record(sample: int, prompt: list[int], ids: list[int], reward: float | None = 1.0, **stored: Any) -> dict[str, Any]:
    logprobs = [-0.5 * (i + 1) for i in range(len(ids))]
    about = {"row": 4, "round": 1, "key": "k", "group_id": "1-k", "sample": sample, "prompt": "p", "stop_reason": None, "truncated": False}
    lists = {"prompt_ids": prompt, "completion_ids": ids, "completion_mask": [1] * len(ids)}
    figures = {
        "sampled_logprobs": logprobs,
        "tempered_logprobs": [p - 1 for p in logprobs],
        "ref_tempered_logprobs": [p - 2 for p in logprobs],
    }
    return {**about, **lists, **figures, "temperature": 0.7, "policy_version": 3, "reward": reward, "advantage": 0.25, **stored}


RECORDS = [
    record(0, [9, 8], [5, 6, EOS]),  # ended by EOS
    record(1, [9, 8], [5, 7], stop_reason="\n"),  # by a stop string
    record(2, [9], [7], stop_reason="7", reward=0.0),  # by a stop id
    record(3, [9, 8, 7], [5, 6, 5, 6], truncated=True, completion_mask=[0] * 4, reward=None, advantage=0.0),  # by length, masked
]


def mapped(kind: str, records: list[dict[str, Any]] = RECORDS, eos: int | None = EOS) -> list[dict[str, Any]]:
    """Converts the records to a trainer's columns; the batch is a slice that begins at its second row, like those of a part."""
    batch = pa.RecordBatch.from_pylist([record(9, [1], [1, 1, 1]), *records], SCHEMA).slice(1)
    return pa.RecordBatch.from_pydict(TRAINERS[kind](batch, eos)).to_pylist()


@pytest.mark.parametrize("kind", TRAINERS)
def test_every_record_can_be_told_apart(kind: str):
    for found, stored in zip(mapped(kind), RECORDS, strict=True):
        assert {name: found[name] for name in ("row", "key", "round", "sample", "group_id", "policy_version")} == {
            name: stored[name] for name in ("row", "key", "round", "sample", "group_id", "policy_version")
        }


def test_trl_takes_for_truncated_what_was_truncated_and_nothing_else():
    """``ids[-1] not in [*eos_token_ids, pad_token_id]`` in GRPOTrainer, for its metrics and for mask_truncated_completions."""
    found = mapped("trl")
    assert [row["completion_ids"][-1] != EOS for row in found] == [row["truncated"] for row in RECORDS]
    assert [row["completion_ids"] for row in found] == [[5, 6, EOS], [5, 7, EOS], [7, EOS], [5, 6, 5, 6]]


def test_trl_trains_on_what_was_sampled_and_on_nothing_else():
    """Loss mask: ones of the completion's length times env_mask. What is added has no part in it, nor in the ratio."""
    for found, stored in zip(mapped("trl"), RECORDS, strict=True):
        assert len(found["completion_ids"]) == len(found["logprobs"]) == len(found["env_mask"])
        trained = [(i, p) for i, p, m in zip(found["completion_ids"], found["logprobs"], found["env_mask"], strict=True) if m]
        expected = zip(stored["completion_ids"], stored["sampled_logprobs"], stored["completion_mask"], strict=True)
        assert trained == [(i, p) for i, p, m in expected if m]
        assert found["prompt_ids"] == stored["prompt_ids"]
        assert (found["reward"], found["advantage"]) == (stored["reward"], stored["advantage"])


def test_trl_without_an_eos_gets_the_records_as_they_are():
    assert [row["completion_ids"] for row in mapped("trl", eos=None)] == [row["completion_ids"] for row in RECORDS]


def test_an_eos_that_is_a_stop_id_is_not_put_twice():
    [found] = mapped("trl", [record(0, [9], [5, EOS], stop_reason=str(EOS))])
    assert found["completion_ids"] == [5, EOS]


def test_appended_ends_are_counted():
    batch = pa.RecordBatch.from_pylist(RECORDS, SCHEMA)
    mapping = TrainerBatches("trl", EOS)
    assert [one.num_rows for one in mapping.batches(iter([batch, batch.slice(0, 1), batch.slice(0, 0)]))] == [4, 1, 0]
    assert mapping.appended == 2


def test_verl_has_the_reward_at_the_last_token_and_the_advantage_on_those_trained_on():
    """``reward_tensor[i, valid_response_length - 1]`` in verl's reward managers; advantages times response_mask in core_algos."""
    for found, stored in zip(mapped("verl"), RECORDS, strict=True):
        n = len(stored["completion_ids"])
        assert found["uid"] == stored["group_id"]
        assert (found["prompts"], found["responses"]) == (stored["prompt_ids"], stored["completion_ids"])
        assert found["response_mask"] == stored["completion_mask"]
        assert found["rollout_log_probs"] == stored["sampled_logprobs"]
        assert found["old_log_probs"] == stored["tempered_logprobs"]
        assert found["ref_log_prob"] == stored["ref_tempered_logprobs"]
        assert found["rm_scores"] == (None if stored["reward"] is None else [0.0] * (n - 1) + [stored["reward"]])
        assert found["advantages"] == [stored["advantage"] * mask for mask in stored["completion_mask"]]


def test_prime_rl_has_prompt_and_completion_as_one():
    """TrainingSample: all of the length of token_ids, zeros where nothing was sampled."""
    for found, stored in zip(mapped("prime-rl"), RECORDS, strict=True):
        t, n = len(stored["prompt_ids"]), len(stored["completion_ids"])
        assert found["token_ids"] == stored["prompt_ids"] + stored["completion_ids"]
        assert found["mask"] == [False] * t + [bool(mask) for mask in stored["completion_mask"]]
        assert found["logprobs"] == [0.0] * t + stored["sampled_logprobs"]
        assert found["ref_logprobs"] == [0.0] * t + stored["ref_tempered_logprobs"]
        assert found["temperatures"] == [float(np.float32(0.7))] * (t + n)
        assert found["advantages"] == [0.0] * t + [stored["advantage"] * mask for mask in stored["completion_mask"]]


def test_verifiers_has_a_turns_tokens():
    for found, stored in zip(mapped("verifiers"), RECORDS, strict=True):
        assert (found["prompt_ids"], found["completion_ids"]) == (stored["prompt_ids"], stored["completion_ids"])
        assert found["completion_logprobs"] == stored["sampled_logprobs"]
        assert (found["is_truncated"], found["reward"]) == (stored["truncated"], stored["reward"])


@pytest.mark.parametrize("kind", TRAINERS)
def test_missing_figures_are_left_out(kind: str):
    batch = pa.RecordBatch.from_pylist(RECORDS, SCHEMA).drop_columns(["reward", "advantage", "ref_tempered_logprobs"])
    found = TRAINERS[kind](batch, EOS)
    assert not {"reward", "advantage", "rm_scores", "advantages", "ref_log_prob", "ref_logprobs"} & found.keys()


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=4), st.lists(st.integers(0, 9), max_size=4), st.booleans()), max_size=8))
def test_ragged_lists_are_pythons(rows: list[tuple[list[int], list[int], bool]]):
    def ragged(lists: list[list[int]]) -> Ragged:
        return Ragged.of(pa.array(lists, pa.list_(pa.int32())))

    first, second = ragged([row[0] for row in rows]), ragged([row[1] for row in rows])
    where = np.array([row[2] for row in rows], np.bool_)
    assert second.after(first).lists(pa.int32()).to_pylist() == [a + b for a, b, _ in rows]
    assert first.append(where, 7).lists(pa.int32()).to_pylist() == [a + [7] * put for a, _, put in rows]
