"""Tests the records of rollout runs: columns, groups, rounds, rewards for trainers, and dropped groups."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.compare.compare import compare_runs
from mlx_bulk.jobs.compare.text import run_cells
from mlx_bulk.jobs.export.source import ExportedRun
from mlx_bulk.jobs.generate.rollout import RolloutJob
from mlx_bulk.jobs.report.run_page import error_section
from mlx_bulk.jobs.status.text import status_as_json, status_as_text
from mlx_bulk.jobs.sweep.results_table import DROPPED
from mlx_bulk.runner.runs.status import run_status

from ..support.bench import ROWS, Bench, Done, table_of
from ..support.rollout_runs import SAMPLES, groups, rewards_file, roll

TOLERANCE = 2e-4  # decode against decode of another shape


def verified(run: Path) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["verify", str(run)])
    return result.exit_code, result.output


def test_each_round_has_each_row_once_with_all_its_samples(bench: Bench):
    done = roll(bench, rounds=3, batch={"rows_per_shard": 2})
    assert done.code == 0, done.stderr
    found = groups(done.records)
    assert list(found) == [(around, row) for around in range(3) for row in range(len(ROWS))]
    assert {len(group) for group in found.values()} == {SAMPLES}
    assert len({record["group_id"] for record in done.records}) == len(found)
    assert "complete: 15 of 15 rows" in done.last_line
    code, text = verified(done.output)
    assert (code, "input    5 rows, in 3 rounds" in text) == (0, True)
    assert "complete and sound: 5 rows, each once in each of 3 rounds" in text
    shown = CliRunner().invoke(cli, ["status", str(done.output)]).output
    assert "15 of 15" in shown


def test_the_logprobs_are_those_of_the_three_distributions(bench: Bench):
    done = roll(bench, sampling={"temperature": 0.7, "top_k": 5}, logprobs={"kept": True})
    for record in done.records:
        own, tempered, sampled = (np.array(record[name]) for name in ("logprobs", "tempered_logprobs", "sampled_logprobs"))
        assert len(own) == len(tempered) == len(sampled) == len(record["completion_mask"]) == record["completion_tokens"]
        assert (sampled >= tempered - TOLERANCE).all()  # the same odds among fewer tokens
        assert [len(kept) for kept in record["kept_ids"]] == [5] * len(own)
        assert all(token in kept for token, kept in zip(record["completion_ids"], record["kept_ids"], strict=True))
        assert (record["temperature"], record["top_k"], record["top_p"], record["min_p"]) == (0.7, 5, 1.0, 0.0)
    plain = roll(bench, "--output", str(bench.root / "plain"))
    for record in plain.records:
        assert record["tempered_logprobs"] == record["logprobs"]
        assert record["sampled_logprobs"] == pytest.approx(record["logprobs"], abs=TOLERANCE)
        assert "kept_ids" not in record


def test_rewards_and_advantages_are_those_of_the_group(bench: Bench):
    path = rewards_file(bench)
    rewards = [{"fn": f"{path}:vowels", "weight": 0.5}, {"fn": f"{path}:long_enough", "name": "long"}]
    done = roll(bench, rewards=rewards, data={"key": "id"})
    assert done.code == 0, done.stderr
    for group in groups(done.records).values():
        assert group[0]["group_id"] == f"0-{group[0]['key']}"
        for record in group:
            assert record["rewards"]["vowels"] == sum(map(record["completion"].count, "aeiou"))
            assert record["rewards"]["long"] == (1.0 if record["completion_tokens"] > 3 else None)
            assert record["reward"] == 0.5 * record["rewards"]["vowels"] + (record["rewards"]["long"] or 0)
            assert record["reward_errors"] == {"vowels": None, "long": None}
        values = np.array([record["reward"] for record in group])
        expected = (values - values.mean()) / (values.std(ddof=1) + 1e-4) if len(set(values)) > 1 else 0 * values
        assert [record["advantage"] for record in group] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    assert any(record["advantage"] > 0 for record in done.records)


@pytest.mark.parametrize(
    "truncated", [pytest.param("keep", marks=pytest.mark.slow), "mask", pytest.param("zero_reward", marks=pytest.mark.slow)]
)
def test_samples_that_ended_by_length(bench: Bench, truncated: str):
    """Within two tokens the model ends only by chance, so nearly all samples are cut off."""
    rewards = [{"fn": f"{rewards_file(bench)}:vowels"}]
    done = roll(bench, rewards=rewards, policy={"truncated": truncated}, sampling={"max_tokens": 4, "logit_bias": {32: 6.0}})
    cut = [record for record in done.records if record["truncated"]]
    assert cut
    whole = [record for record in done.records if not record["truncated"]]
    for record in cut:
        assert record["completion_mask"] == [int(truncated != "mask")] * record["completion_tokens"]
        assert record["reward"] == (0 if truncated == "zero_reward" else record["rewards"]["vowels"])
    assert all(record["completion_mask"] == [1] * record["completion_tokens"] for record in whole)
    assert all(record["reward"] == record["rewards"]["vowels"] for record in whole)
    assert any(record["rewards"]["vowels"] for record in cut)


def test_groups_with_nothing_to_compare_are_dropped_and_counted_and_are_no_errors(bench: Bench):
    source = (
        "def first_two(prompts, completions, q, **kwargs):\n    return [float(i if q[0] != 'O' else 1) for i in range(len(completions))]\n"
    )
    settings: dict[str, Any] = {"rewards": [{"fn": f"{rewards_file(bench, source)}:first_two"}], "drop_degenerate": True, "rounds": 2}
    done = roll(bench, **settings)
    assert done.code == 0, done.stderr
    assert "complete: 10 of 10 rows, 2 groups dropped" in done.last_line
    assert "quarantined" not in done.stderr
    assert [(e["round"], e["row"], e["sample"], e["stage"], e["error"]) for e in done.errors] == [
        (around, 2, None, "drop", "DegenerateGroup") for around in range(2)
    ]
    assert done.errors[0]["message"].startswith("all rewards are 1, so every advantage would be 0")
    assert list(groups(done.records)) == [(around, row) for around in range(2) for row in (0, 1, 3, 4)]
    code, text = verified(done.output)
    assert (code, "errors   none" in text, "dropped  2 groups: 2 DegenerateGroup" in text) == (0, True, True)
    assert "each once in each of 2 rounds\n" in f"{text}\n"
    found = run_status(done.output)
    text = status_as_text(found, 120)
    assert (found.dropped, "errors    none" in text, "dropped   2 groups: 2 DegenerateGroup" in text) == (2, True, True)
    values = json.loads(status_as_json(found))
    assert (values["errors"], values["dropped"]) == (0, 2)
    assert error_section(found) is None
    side = compare_runs(done.output, done.output, 1).a
    assert (side.errors, side.dropped) == (0, 2)
    assert run_cells(side)[1].endswith(" complete, 2 groups dropped")
    notes = ExportedRun.at(done.output, partial=False).notes(with_errors=False)
    assert notes == ["not in it: 2 groups dropped by the config, which errors/ names"]
    for options in ([], ["--retry-errors"]):
        again = roll(bench, *options, **settings)
        assert (again.code, "2 groups dropped" in again.last_line, "quarantined" in again.stderr) == (0, True, False)
        assert again.records == done.records


def test_a_row_that_cannot_be_done_is_an_error_once_a_round(bench: Bench):
    rows = [ROWS[0], {"id": "x"}, ROWS[2]]
    done = roll(bench, rows=rows, rounds=2)
    assert (done.code, done.last_line.startswith("complete: 6 of 6 rows, 2 quarantined in errors/")) == (3, True)
    assert [(e["round"], e["row"], e["stage"]) for e in done.errors] == [(0, 1, "template"), (1, 1, "template")]
    assert verified(done.output)[0] == 3


def test_one_sample_that_fails_takes_its_group_with_it(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    from mlx_bulk.runner.core.outcomes import Failure
    from mlx_bulk.runner.engine.decode_batch import DecodeBatch

    real = DecodeBatch._ended  # pyright: ignore[reportPrivateUsage]

    def ended(self: Any, slot: int, token: int, bad: bool) -> Any:
        outcome = real(self, slot, token, bad)
        if outcome is not None and not isinstance(outcome, Failure) and (outcome.row, outcome.index) == (3, 1):
            return Failure(outcome.row, None, outcome.index, "generate", "NotANumber", "NaN among the logits", "")
        return outcome

    monkeypatch.setattr(DecodeBatch, "_ended", ended)
    done = roll(bench, data={"key": "id"})
    assert done.code == 3
    assert list(groups(done.records)) == [(0, row) for row in (0, 1, 2, 4)]
    assert [(e["row"], e["key"], e["sample"], e["error"]) for e in done.errors] == [(3, "d", None, "NotANumber")]
    assert done.errors[0]["message"].startswith("sample 1: NaN among the logits; its group is left out as a whole")


def test_rounds_can_be_added_and_rows_cannot_when_there_are_several(bench: Bench):
    first = roll(bench, batch={"rows_per_shard": 2})
    more = roll(bench, batch={"rows_per_shard": 2}, rounds=2)
    assert (more.code, more.records[: len(first.records)]) == (0, first.records)
    assert len(more.records) == 2 * len(first.records)
    fewer = roll(bench, batch={"rows_per_shard": 2})
    assert (fewer.code, "rounds: the run covers 2 rounds, the config now says 1" in fewer.stderr) == (4, True)
    with (bench.root / "rows.jsonl").open("a") as file:
        file.write('{"id": "f", "q": "One more."}\n')
    grown = roll(bench, batch={"rows_per_shard": 2}, rounds=2)
    assert grown.code == 4
    assert (
        "rounds: the run has 2 rounds of 5 rows, the input now gives 6; a run of several rounds cannot grow: set data.limit" in grown.stderr
    )
    assert roll(bench, batch={"rows_per_shard": 2}, rounds=2, data={"limit": 5}).code == 0


def test_a_run_of_one_round_grows_with_its_input(bench: Bench):
    assert roll(bench, data={"limit": 3}).code == 0
    done = roll(bench, data={"limit": 5})
    assert (done.code, len(groups(done.records))) == (0, 5)


def test_rows_may_bring_their_own_number_of_samples_and_temperature(bench: Bench):
    rows = [{"q": "One.", "k": 2, "t": 0.5}, {"q": "Two.", "k": 3, "t": None}, {"q": "Three.", "k": 1, "t": 0}]
    done = roll(bench, rows=rows, sampling={"columns": {"n": "k", "temperature": "t"}})
    found = groups(done.records)
    assert [len(group) for group in found.values()] == [2, 3]
    assert [group[0]["temperature"] for group in found.values()] == [0.5, 1.0]
    assert (done.code, done.errors[0]["row"], done.errors[0]["stage"]) == (3, 2, "sampling")
    assert "sampling.temperature of this row: found 0; expected a number above 0" in done.errors[0]["message"]


@pytest.mark.slow
def test_changed_reward_functions_are_drift(bench: Bench):
    settings: dict[str, Any] = {"rewards": [{"fn": f"{rewards_file(bench)}:vowels"}]}
    assert roll(bench, **settings).code == 0
    rewards_file(bench, "def vowels(completions, **kwargs):\n    return [0.0 for _ in completions]\n")
    changed = roll(bench, **settings)
    assert (changed.code, "rewards.vowels: the run has sha256" in changed.stderr) == (4, True)


@pytest.mark.slow
def test_a_sweep_takes_rollouts(bench: Bench):
    base: dict[str, Any] = {"job": "rollout", "model": {"path": str(bench.model)}, "prompt": {"text": "{{ q }}"}}
    base |= {"data": {"path": str(bench.write_rows(ROWS))}, "sampling": {"n": 2, "max_tokens": 3}, "drop_degenerate": True}
    base |= {"rewards": [{"fn": f"{rewards_file(bench)}:vowels"}]}
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.temperature": [0.5, 1.0]}, "output": {"path": str(bench.root / "sweep")}}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep))
    done = bench.command(path)
    assert done.code == 0, done.stderr
    lines = done.stderr.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("sampling.temperature "))
    heading, *cells = lines[at : at + 3]
    assert re.split("  +", heading.strip()) == [
        "sampling.temperature",
        "reward",
        "groups",
        "dropped",
        "nothing to compare",
        "truncated",
        "tokens",
    ]
    for cell, line in zip(sorted((bench.root / "sweep").glob("*/results")), cells, strict=True):
        records = table_of(cell).to_pylist()
        kept = len(groups(records))
        _, reward, *counts = re.split("  +", line.strip())
        assert re.fullmatch(r"[0-9.]+ ± [0-9.]+", reward)
        # No group that is kept has nothing to compare: the others were dropped.
        assert counts[:3] == [str(kept), str(len(ROWS) - kept) if kept < len(ROWS) else "–", "0"]
    assert DROPPED in lines
    page = CliRunner().invoke(cli, ["report", str(bench.root / "sweep")])
    assert page.exit_code == 0, page.output
    assert "mean reward" in (bench.root / "sweep/report.html").read_text()


@pytest.mark.parametrize(("most", "stale"), [(2, True), pytest.param(3, False, marks=pytest.mark.slow)])
def test_groups_of_an_old_policy_are_marked(bench: Bench, monkeypatch: pytest.MonkeyPatch, most: int, stale: bool):
    newest_is(monkeypatch, 3)
    done = roll(bench, policy={"max_staleness": most})
    assert (done.code, len(done.records)) == (0, SAMPLES * len(ROWS))
    assert {(record["staleness"], record["stale"], record["policy_version"]) for record in done.records} == {(3, stale, 0)}
    assert "staleness" not in roll(bench, "--output", str(bench.root / "plain")).records[0]


def test_groups_of_an_old_policy_are_dropped_and_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    newest_is(monkeypatch, 3)
    done = roll(bench, policy={"max_staleness": 2, "stale": "drop"})
    assert (done.code, done.records, len(done.errors)) == (0, [], len(ROWS))
    assert {(e["stage"], e["error"]) for e in done.errors} == {("drop", "StaleGroup")}
    said = "sampled at step 0 of the trainer, which is at 3: 3 behind, and policy.max_staleness is 2"
    assert all(e["message"].startswith(said) for e in done.errors)
    assert "5 groups dropped" in done.last_line
    assert "dropped  5 groups: 5 StaleGroup" in verified(done.output)[1]


def newest_is(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """Has the trainer be at step ``version`` whenever a group is recorded."""
    real = RolloutJob.group
    monkeypatch.setattr(
        RolloutJob, "group", lambda self, row, request, outcomes, ratings, newest: real(self, row, request, outcomes, ratings, version)
    )  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


@pytest.mark.slow
def test_two_rollout_runs_are_compared_by_round_row_and_sample(bench: Bench):
    one = roll(bench, "--output", str(bench.root / "one"), rounds=2)
    two = roll(bench, "--output", str(bench.root / "two"), rounds=2, sampling={"seed": 1})
    same = roll(bench, "--output", str(bench.root / "same"), rounds=2)
    assert drawn(one) == drawn(same) != drawn(two)
    for other, alike in ((same, 40), (two, None)):
        result = CliRunner().invoke(cli, ["compare", str(one.output), str(other.output), "--json"])
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)["paired"]
        assert (found["matched"], found["only_a"], found["only_b"]) == (40, 0, 0)
        assert alike is None or found["figures"]["same"] == alike


def drawn(done: Done) -> list[list[int]]:
    return [record["completion_ids"] for record in done.records]
