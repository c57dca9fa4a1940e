"""Tests reward functions in whole runs: their faults are in the records and in the last lines, and stop nothing."""

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from ..jobs.support.bench import ROWS, Bench
from ..jobs.support.exported_runs import export
from ..jobs.support.rollout_runs import SAMPLES, groups, rewards_file, roll

WRONG = """
import os

def right(completions, q, **kwargs):
    print("a line that breaks a progress bar")
    return [1.0, *[0.0] * (len(completions) - 1)]

def raises(completions, q, **kwargs):
    if q[0].startswith("What"):
        raise KeyError("gold")
    return [None] * len(completions)

def hangs(completions, q, **kwargs):
    while q[0] == "O":
        pass
    return [0.5] * len(completions)

def short(completions): return [1.0]

def nan(completions): return [float("nan")] * len(completions)

def dies(completions, q, **kwargs):
    if "king" in q[0]:
        os._exit(3)
    return [0.0] * len(completions)
"""


@pytest.mark.slow
def test_failed_rewards_are_null_and_counted_and_the_run_is_complete(bench: Bench):
    file = rewards_file(bench, WRONG)
    names = ["right", "raises", "hangs", "short", "nan", "dies"]
    done = roll(bench, rewards=[{"fn": f"{file}:{name}", "timeout": 0.5 if name == "hangs" else 60} for name in names])
    assert done.code == 0, done.stderr
    found = groups(done.records)
    assert len(found) == len(ROWS)
    for (_, row), records in found.items():
        question = ROWS[row]["q"]
        expected = {
            "right": None,
            "raises": "exception: KeyError: 'gold' (rewards.py, line 10)" if question.startswith("What") else None,
            "hangs": "timeout: no answer within 0.5 seconds" if question == "O" else None,
            "short": f"length: returned 1 rewards for {SAMPLES} completions",
            "nan": "nan: the reward is not a number",
            "dies": "died: its process ended with exit code 3" if "king" in question else None,
        }
        nulls = {name for name, error in expected.items() if error} | {"raises"}
        for record in records:
            assert record["reward_errors"] == expected
            assert {name for name, reward in record["rewards"].items() if reward is None} == nulls
            assert record["reward"] == sum(reward for reward in record["rewards"].values() if reward is not None)
        # One success in four: deviation 1/2.
        assert abs(records[0]["advantage"] - 0.75 / (0.5 + 1e-4)) < 1e-6
    assert "breaks a progress bar" not in done.stderr + done.stdout
    for line in (
        f"raises: {SAMPLES} × exception: KeyError",
        f"hangs: {SAMPLES} × timeout",
        f"short: {5 * SAMPLES} × length",
        "dies: 4 × died",
    ):
        assert f"no reward: {line}" in done.stderr


def test_a_sample_that_no_function_rates_has_no_reward_and_advantage_zero(bench: Bench):
    file = rewards_file(bench, "def f(completions): return [None, 1.0, 0.0, None]\ndef g(completions): return [None, 1.0, None, None]")
    done = roll(bench, rewards=[{"fn": f"{file}:f"}, {"fn": f"{file}:g", "weight": -3.0}])
    assert done.code == 0, done.stderr
    for records in groups(done.records).values():
        assert [record["reward"] for record in records] == [None, -2.0, 0.0, None]
        assert [record["advantage"] for record in records] == [0.0, *[records[1]["advantage"], -records[1]["advantage"]], 0.0]
        assert abs(records[2]["advantage"] - 1 / (2**0.5 + 1e-4)) < 1e-6


def test_truncated_samples_get_reward_0_only_where_a_function_rated_them(bench: Bench):
    """All six tokens are sampled of each, so all are truncated."""
    file = rewards_file(bench, "def f(completions): return [None, 1.0, 2.0, None]\ndef g(completions): return [None, None, 1.0, 3.0]")
    rewards = [{"fn": f"{file}:f"}, {"fn": f"{file}:g"}]
    done = roll(bench, sampling={"ignore_eos": True}, rewards=rewards, policy={"truncated": "zero_reward"})
    assert done.code == 0, done.stderr
    assert all(record["truncated"] for record in done.records)
    for records in groups(done.records).values():
        assert [record["reward"] for record in records] == [None, 0.0, 0.0, 0.0]
        assert [record["advantage"] for record in records] == [0.0] * SAMPLES


@pytest.mark.parametrize("kind", ["grpo", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("centered", "rloo"))])
def test_a_weighted_sum_beyond_float32_is_null_with_its_reason(bench: Bench, kind: str):
    """Two of four are too large once weighted, one by both functions; the others are as large as may be."""
    source = "def f(completions): return [3e38, 1e32, 1.7e32, -1.7e32]\ndef g(completions): return [None, 1.6e38, 0.0, None]"
    file = rewards_file(bench, source)
    done = roll(bench, rewards=[{"fn": f"{file}:f", "weight": 1e6}, {"fn": f"{file}:g"}], advantages=kind)
    assert done.code == 0, done.stderr
    reason = "infinite: the weighted sum is beyond 1.7e+38 either way"
    for records in groups(done.records).values():
        assert [record["reward"] for record in records] == [None, None, pytest.approx(1.7e38), pytest.approx(-1.7e38)]
        errors = [(record["reward_errors"]["f"], record["reward_errors"]["g"]) for record in records]
        assert errors == [(reason, None), (reason, reason), (None, None), (None, None)]
        found = [record["advantage"] for record in records]
        assert found[:2] == [0.0, 0.0]
        assert math.isfinite(found[2])
        assert found[3] == -found[2] < 0
    assert f"no reward: f: {2 * len(ROWS)} × infinite: the weighted sum" in done.stderr


def test_a_function_that_cannot_be_imported_stops_before_anything_is_there(bench: Bench):
    file = rewards_file(bench, "x = 1\nimport nothing_of_this_name")
    done = roll(bench, rewards=[{"fn": f"{file}:f"}])
    assert done.code == 2
    assert f"{file}, line 2: ModuleNotFoundError: No module named 'nothing_of_this_name'" in done.last_line
    assert not done.output.exists()


def test_rollouts_reach_trl_and_the_others_through_export(bench: Bench, tmp_path: Path):
    """At temperature 0.7 and top-p 0.9, with a stop string that ends some of the completions."""
    file = rewards_file(bench)
    sampling = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 8, "stop": ["e"]}
    done = roll(bench, sampling=sampling, rewards=[{"fn": f"{file}:vowels"}])
    assert done.code == 0, done.stderr
    records = done.records
    stopped = [record for record in records if record["stop_reason"] is not None]
    assert stopped
    assert len(stopped) < len(records)
    said = export(done.output, "trl", tmp_path / "trl.parquet").stderr
    assert f"not trained on: {len(stopped)}" in said
    for found, record in zip(pq.read_table(tmp_path / "trl.parquet").to_pylist(), records, strict=True):
        n = record["completion_tokens"]
        assert found["completion_ids"][:n] == record["completion_ids"]
        assert found["logprobs"][:n] == record["sampled_logprobs"] != record["logprobs"]
        assert found["env_mask"] == [1] * n + [0] * (record["stop_reason"] is not None)
    for kind in ("verl", "prime-rl", "verifiers"):
        export(done.output, kind, tmp_path / f"{kind}.parquet")
        read = load_dataset("parquet", data_files=str(tmp_path / f"{kind}.parquet"), split="train", cache_dir=str(tmp_path / "cache"))
        assert len(read) == len(records)
    stored = load_dataset("arrow", data_files=str(done.output / "results" / "*.arrow"), split="train", cache_dir=str(tmp_path / "cache"))
    assert stored["rewards"][0] == records[0]["rewards"]


def test_only_rollouts_are_exported_for_trainers(bench: Bench, tmp_path: Path):
    done = bench.run()
    assert "--format trl: holds rollouts, and this is a run of job: generate" in export(done.output, "trl", tmp_path / "x", code=2).stderr
