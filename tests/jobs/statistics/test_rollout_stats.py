"""Tests statistics of rollouts: closed forms on records written by hand, through the real writer."""

import doctest
import math
from collections.abc import Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_bulk.jobs.statistics.rollout_stats import rollout_statistics
from mlx_bulk.jobs.statistics.rollout_sums import pass_at_k
from mlx_bulk.jobs.statistics.rollout_table import rollout_closing
from mlx_bulk.runner.core.errors import DROP
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.writer import Writer

BARE = [("row", pa.int64()), ("round", pa.int32()), ("sample", pa.int32()), ("truncated", pa.bool_()), ("completion_tokens", pa.int32())]
POLICY = ("policy_version", pa.int32())
REWARDS = pa.struct([("right", pa.float32()), ("brief", pa.float32())])
ERRORS = pa.struct([("right", pa.string()), ("brief", pa.string())])
SCHEMA = pa.schema([*BARE, POLICY, ("reward", pa.float32()), ("rewards", REWARDS), ("reward_errors", ERRORS)])

Sampled = tuple[float | None, float | None]  # what the two functions gave


def group(version: int, *samples: Sampled, error: str | None = None, truncated: int = 0) -> list[dict[str, Any]]:
    """A group's records: the reward is the sum; ``error`` is said of every null of the first function."""
    return [
        {
            "truncated": i < truncated,
            "completion_tokens": 5,
            "policy_version": version,
            "reward": None if right is None and brief is None else (right or 0.0) + (brief or 0.0),
            "rewards": {"right": right, "brief": brief},
            "reward_errors": {"right": error if right is None else None, "brief": None},
        }
        for i, (right, brief) in enumerate(samples)
    ]


def dropped(error: str) -> list[dict[str, Any]]:
    """A group that was left out on purpose, in the place of its records."""
    return [{"dropped": error}]


def written(folder: Path, groups: Sequence[list[dict[str, Any]]], rounds: int = 1, schema: pa.Schema = SCHEMA) -> pa.Table:
    """The statistics of a run with these groups, those of a round behind each other, in shards of two rows."""
    layout = Layout(len(groups) // rounds, 2, rounds)
    with RunDir.open(folder) as run:
        run.bind({"identity": {}, "config": {"rounds": rounds}, "inputs": {"limit": None, "sources": []}})
        writer = Writer(run, run.identity, schema, layout, run.recover(layout, schema), 5.0)
        for number, records in enumerate(groups):
            position = layout.position(number // layout.rows, number % layout.rows)
            if "dropped" in records[0]:
                writer.fail(Failure(position, "key", None, DROP, records[0]["dropped"], "left out", "{}"))
                continue
            writer.admit(position, len(records))
            writer.add_group(position, dict(enumerate(records)))
        writer.finish()
    return rollout_statistics(folder)


def test_the_examples_hold():
    assert doctest.testmod(import_module("mlx_bulk.jobs.statistics.rollout_sums")).failed == 0


def test_groups_samples_and_rewards(tmp_path: Path):
    groups = [
        group(0, (1.0, 0.5), (0.0, 0.5), truncated=1),
        group(0, (1.0, 0.0), (1.0, 0.0)),  # all equal
        group(3, (None, None), (0.0, 0.25), error="timeout: no answer within 1 seconds"),  # one reward
        group(3, (None, 0.25), (None, 0.75), error="exception: ValueError: x"),
    ]
    found = written(tmp_path / "run", groups).to_pylist()
    assert [(row["of"], row["group"]) for row in found] == [
        ("all", "all"),
        ("round", "0"),
        ("policy_version", "0"),
        ("policy_version", "3"),
    ]
    whole, _, old, new = found
    assert [whole[name] for name in ("groups", "samples", "degenerate", "unrated", "truncated", "completion_tokens")] == [4, 8, 2, 1, 1, 40]
    rewards = [1.5, 0.5, 1.0, 1.0, 0.25, 0.25, 0.75]
    mean = sum(rewards) / 7
    assert whole["reward"] == pytest.approx(mean)
    assert whole["reward_std"] == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in rewards) / 6))
    sums = [(2.0, 2), (2.0, 2), (0.25, 1), (1.0, 2)]
    assert whole["reward_stderr"] == pytest.approx(math.sqrt(4 / 3 * sum((s - mean * n) ** 2 for s, n in sums)) / 7)
    assert whole["rewards"]["right"] == {"mean": 0.6, "std": pytest.approx(math.sqrt(0.3)), "count": 5, "errors": 3}
    assert whole["rewards"]["brief"]["count"] == 7
    timeout, exception = {"count": 1, "first": "no answer within 1 seconds"}, {"count": 2, "first": "ValueError: x"}
    assert whole["reward_errors"] == {
        "right": {"exception": exception, "timeout": timeout},
        "brief": {"exception": None, "timeout": None},
    }
    assert (old["groups"], new["groups"], old["degenerate"], new["degenerate"]) == (2, 2, 1, 1)
    assert old["reward"] == 1.0
    assert new["rewards"]["right"]["mean"] == 0.0


def test_pass_at_k_counts_what_was_rated_and_is_for_zeros_and_ones_alone(tmp_path: Path):
    """The first function rated 4, 4 and 2 samples, of which 1, 0 and 2 are right; the second gives a half."""
    groups = [
        group(0, (1.0, 0.5), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
        group(0, (0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
        group(0, (1.0, 1.0), (1.0, 1.0), (None, 1.0), (None, 1.0)),
    ]
    [whole, *_] = written(tmp_path / "run", groups).to_pylist()
    assert whole["pass_at"]["brief"] is None
    assert whole["pass_at"]["right"] == {"1": pytest.approx((0.25 + 0 + 1) / 3), "2": pytest.approx((0.5 + 0 + 1) / 3), "4": 0.5}


def test_dropped_groups_are_counted_and_leave_no_pass_at_k(tmp_path: Path):
    """Of eight groups that all have n = 2, four were all right, and are gone: what is left says 0.5 where 0.75 were right."""
    kept, gone = group(3, (1.0, 0.5), (0.0, 0.5)), dropped("DegenerateGroup")
    table = written(tmp_path / "run", [kept, kept, gone, gone, kept, kept, dropped("StaleGroup"), kept], rounds=2)
    found = {(row["of"], row["group"]): row for row in table.to_pylist()}
    figures = {key: (row["groups"], row["dropped"], row["pass_at"]["right"]) for key, row in found.items()}
    assert figures == {
        ("all", "all"): (5, 3, None),
        ("round", "0"): (2, 2, None),
        ("round", "1"): (3, 1, {"1": 0.5, "2": 1.0}),  # what is stale is not all right or all wrong
        ("policy_version", "3"): (5, None, None),  # whose the dropped ones were is not known
    }
    heading, said, names, *_ = rollout_closing(table).splitlines()
    assert heading.startswith("5 groups, 10 samples;")
    assert said == "of the groups that were kept: 3 dropped groups are in none of these figures, so pass@k is not to be had"
    assert names.split() == ["mean", "std", "null"]


def test_where_only_stale_groups_were_dropped_pass_at_k_is_of_the_kept(tmp_path: Path):
    table = written(tmp_path / "run", [group(3, (1.0, 0.5), (0.0, 0.5)), dropped("StaleGroup")])
    _, said, names, *_ = rollout_closing(table).splitlines()
    assert said == "of the groups that were kept: 1 dropped group is in none of these figures"
    assert names.split() == ["mean", "std", "pass@1", "pass@2", "null"]
    assert written(tmp_path / "whole", [group(3, (1.0, 0.5), (0.0, 0.5))]).column("dropped").to_pylist() == [0, 0, 0]


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_draws(n: int, data: st.DataObject):
    hits, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations(range(n), k))
    assert pass_at_k(n, hits, k) == pytest.approx(sum(min(draw) < hits for draw in draws) / len(draws))


def test_rounds_are_apart_and_a_row_of_two_rounds_is_two_groups(tmp_path: Path):
    groups = [
        group(0, (1.0, 0.0), (0.0, 0.0)),
        group(0, (1.0, 0.0), (1.0, 0.0)),
        group(5, (0.0, 0.0), (0.0, 0.0)),
        group(5, (1.0, 0.0), (0.0, 0.0)),
    ]
    found = {(row["of"], row["group"]): row for row in written(tmp_path / "run", groups, rounds=2).to_pylist()}
    assert found["all", "all"]["groups"] == 4
    assert [found["round", name]["reward"] for name in "01"] == [0.75, 0.25]
    assert [found["policy_version", name]["degenerate"] for name in "05"] == [1, 1]


def test_one_group_of_one_round_twice_over_stays_one_group_each(tmp_path: Path):
    """A single row in two rounds: the records stand next to each other, with one ``row``."""
    found = written(tmp_path / "run", [group(0, (1.0, 0.0), (0.0, 0.0)), group(0, (1.0, 0.0), (0.0, 0.0))], rounds=2)
    assert found.column("groups").to_pylist() == [2, 1, 1, 2]


def test_rounds_that_say_nothing_new_leave_the_error_as_it_is(tmp_path: Path):
    prompts = [group(0, (1.0, 0.0), (1.0, 0.0)), group(0, (0.0, 0.0), (0.0, 0.0)), group(0, (1.0, 0.0), (0.0, 0.0))]
    once, often = (written(tmp_path / str(rounds), prompts * rounds, rounds).to_pylist()[0] for rounds in (1, 9))
    assert often["groups"] == 27
    assert often["reward_stderr"] == pytest.approx(once["reward_stderr"])


def test_without_rewards_there_are_counts_alone(tmp_path: Path):
    bare = [{"truncated": True, "completion_tokens": 2, "policy_version": 0}] * 2
    found = written(tmp_path / "run", [bare, bare], schema=pa.schema([*BARE, POLICY]))
    assert found.column_names[2:8] == ["groups", "samples", "degenerate", "unrated", "truncated", "completion_tokens"]
    assert not {"rewards", "pass_at", "reward_errors"} & set(found.column_names)
    assert found.to_pylist()[0]["reward"] is None
    assert rollout_closing(found) == "2 groups, 4 samples; 4 (100.0%) of them truncated"


def test_nothing_done_is_null_and_not_zero(tmp_path: Path):
    found = written(tmp_path / "run", [])
    assert found.to_pylist()[0]["groups"] == 0
    assert found.to_pylist()[0]["reward"] is None
    assert rollout_closing(found) == ""


def test_the_end_of_a_run_says_it_in_a_few_lines(tmp_path: Path):
    groups = [
        group(0, (1.0, 0.5), (0.0, 0.5), truncated=1),
        group(0, (1.0, 0.0), (1.0, 0.0)),
        group(12, (None, 0.25), (None, 0.75), error="exception: ValueError: x"),
    ]
    text = rollout_closing(written(tmp_path / "run", groups))
    heading, names, reward, right, brief, nulls, versions, first, second = text.splitlines()
    assert heading == "3 groups, 6 samples; 1 (16.7%) of them truncated; 1 (33.3%) of the groups with nothing to compare"
    assert names.split() == ["mean", "std", "pass@1", "pass@2", "null"]
    assert reward.split()[:2] == ["reward", "0.83"]
    assert right.split() == ["right", "0.7500", "0.5000", "0.7500", "1.000", "2"]
    assert brief.split() == ["brief", "0.3333", "0.3028", "0"]
    assert nulls == "no reward: right: 2 × exception: ValueError: x"
    assert versions.split()[:2] == ["policy", "version"]
    assert (first.split()[:2], second.split()[:2]) == (["0", "2"], ["12", "1"])


def test_groups_that_are_marked_as_stale_are_counted(tmp_path: Path):
    marks = (True, False, True)
    groups = [[record | {"stale": mark} for record in group(2, (1.0, 0.0), (0.0, 0.0))] for mark in marks]
    bounded = pa.schema([*SCHEMA, pa.field("stale", pa.bool_())])
    text = rollout_closing(found := written(tmp_path / "some", groups, schema=bounded))
    assert text.splitlines()[0].endswith("of them truncated; 2 (66.7%) of the groups stale; 0 (0.0%) of the groups with nothing to compare")
    assert found["stale"].to_pylist() == [2, 2, 2]  # of all, of the round, of the policy
    none = [[record | {"stale": False} for record in group(2, (1.0, 0.0), (0.0, 0.0))]]
    found = written(tmp_path / "none", none, schema=bounded)
    assert found["stale"].to_pylist() == [0, 0, 0]
    assert "stale" not in rollout_closing(found)
    assert "stale" not in written(tmp_path / "unbounded", [group(2, (1.0, 0.0))]).column_names


def test_of_many_policies_the_first_and_the_newest_are_shown(tmp_path: Path):
    text = rollout_closing(written(tmp_path / "run", [group(version, (1.0, 0.0), (0.0, 0.0)) for version in range(30)]))
    shown = [line.split()[0] for line in text.splitlines()[6:]]
    assert shown == ["0", "…", *map(str, range(19, 30))]
