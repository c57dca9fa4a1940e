"""Tests ``select: best``: one record a group, of its sample with the highest reward."""

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.generate.trainer_api import Rollouts

from ..support.bench import ROWS, Bench
from ..support.rollout_runs import SAMPLES, groups, rewards_file, roll

FUNCTION = """
def f(completions, q, **kwargs):
    if q[0] == "O":
        return [None] * len(completions)
    return [float(sum(map(text.count, "aeiou")) // 2) for text in completions]
"""


def settings(bench: Bench, **more: Any) -> dict[str, Any]:
    return {"rewards": [{"fn": f"{rewards_file(bench, FUNCTION)}:f"}], **more}


def invoked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


def test_the_best_sample_of_each_group_is_recorded_with_the_rewards_of_all(bench: Bench):
    whole = roll(bench, "--output", str(bench.root / "all"), **settings(bench))
    done = roll(bench, **settings(bench, select="best", batch={"rows_per_shard": 2}))
    assert done.code == 3, done.stderr  # the group whose samples have no reward has none that is the best
    assert [(error["row"], error["stage"], error["error"], error["sample"]) for error in done.errors] == [
        (2, "reward", "UnratedGroup", None)
    ]
    assert "no sample has a reward" in done.errors[0]["message"]
    candidates = groups(whole.records)
    assert [record["row"] for record in done.records] == [0, 1, 3, 4]
    for record in done.records:
        samples = candidates[0, record["row"]]
        rewards = [sample["reward"] for sample in samples]
        at = int(np.argmax(rewards))  # the first of equals
        assert record["group_rewards"] == rewards
        assert (record["group_sample"], record["sample"]) == (at, 0)
        assert {name: record[name] for name in ("completion_ids", "seed", "reward", "advantage")} == {
            name: samples[at][name] for name in ("completion_ids", "seed", "reward", "advantage")
        }
    assert any(record["group_sample"] for record in done.records)
    drawn = [reward for record in done.records for reward in record["group_rewards"]]
    first = json.loads((done.output / "summary.json").read_text())["statistics"]
    assert first["reward"] == pytest.approx(np.mean([max(record["group_rewards"]) for record in done.records]))
    assert (first["samples"], first["drawn"], first["drawn_reward"]) == (4, 4 * SAMPLES, pytest.approx(np.mean(drawn)))
    assert f"4 groups, {4 * SAMPLES} samples, the best of each group kept" in done.stderr
    assert "reward of all samples" in done.stderr
    again = roll(bench, **settings(bench, select="best", batch={"rows_per_shard": 2}))
    assert (again.records, "4 groups" in again.stderr) == (done.records, True)


@pytest.mark.slow
def test_a_run_of_best_samples_is_sound_and_replays(bench: Bench):
    rewards = [{"fn": f"{rewards_file(bench, 'def f(completions): return [0.0, 1.0, 3.0, 2.0]')}:f"}]
    done = roll(bench, rewards=rewards, select="best", batch={"rows_per_shard": 2, "deterministic": True}, rows=ROWS[:2])
    assert done.code == 0, done.stderr
    assert [record["group_sample"] for record in done.records] == [2, 2]
    assert "complete and sound: 2 rows" in invoked("verify", str(done.output))[1]
    for option in ("--replay", "--rescore"):
        code, text = invoked("verify", option, str(done.output))
        assert code == 0, text
    code, text = invoked("plan", str(bench.root / "config.yaml"), "--output", str(bench.root / "planned"))
    assert code == 0, text
    page = bench.root / "page.html"
    assert invoked("report", str(done.output), "--to", str(page))[0] == 0
    assert f"the mean over all {2 * SAMPLES} is" in page.read_text()


def test_groups_in_memory_have_one_record_each(bench: Bench):
    path = bench.write_config(job="rollout", sampling={"n": SAMPLES, "max_tokens": 6, "temperature": 1.0}, **settings(bench, select="best"))
    with Rollouts(path) as rollouts:
        found = {group.column("row")[0].as_py(): group for group in rollouts}
        assert sorted(found) == [0, 1, 3, 4]
        assert {group.num_rows for group in found.values()} == {1}
        assert [error["row"] for error in rollouts.errors] == [2]
