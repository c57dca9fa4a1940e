"""Tests policies in real rollout runs: which a session takes, refuses, notes and keeps, and which may change between sessions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.files.checked_json import read_document
from mlx_bulk.runner.files.checked_lines import read_lines
from mlx_bulk.runner.layers.kernel_injection import restore

from ..adapters import write_adapter
from ..checkpoints import loaded
from ..jobs.support.bench import Bench, Done
from ..jobs.support.rollout_runs import roll
from ..jobs.verify.test_verify import verify
from ..runner.support.naive_truth import log_probabilities


def watching(bench: Bench, *options: str, **sections: Any) -> Done:
    given: dict[str, Any] = {"policy": {"watch": str(bench.root / "adapters")}} | sections
    return roll(bench, *options, **given)


def step(bench: Bench, number: int, **how: Any) -> Path:
    return write_adapter(bench.root / "adapters" / f"step_{number:06d}", loaded(bench.model).network, seed=number, **how)


def kept(done: Done) -> list[str]:
    return sorted(path.name.split("-")[0] for path in (done.output / "policies").glob("*-*"))


def versions(done: Done) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for record in done.records:
        found.setdefault(record["round"], set()).add(record["policy_version"])
    return found


def test_a_broken_step_is_refused_noted_and_passed_over(bench: Bench):
    good, broken = step(bench, 2), step(bench, 3) / "adapters.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    step(bench, 5, done=False)
    done = watching(bench)
    assert done.code == 0
    assert versions(done) == {0: {2}}
    assert kept(done) == ["0", "2"]
    assert done.stderr.count("is refused") == 1
    assert "step_000005: is passed over until it holds a file named DONE" in done.stderr
    events = [(line["event"], line["version"]) for line in read_lines(done.output / "policies" / "events.jsonl")]
    assert events == [("refused", 3), ("taken", 2)]
    assert "complete: 5 of 5 rows, 1 policy refused; " in done.last_line
    assert read_document(done.output / "summary.json")["refused"] == 1
    shown = CliRunner().invoke(cli, ["status", str(done.output)]).stdout
    assert "policies  1 refused; policies/events.jsonl says why\n" in shown
    assert (good / "DONE").is_file()  # the trainer's folder stays as it was


def test_a_folder_that_gave_no_policy_is_named_at_the_end(bench: Bench):
    said = f"no policy was ever taken from {bench.root / 'adapters'}: the model itself has sampled all of it\n"
    assert said in watching(bench).stderr
    assert "no policy was ever taken" not in roll(bench, output={"path": str(bench.root / "unwatched")}).stderr


def test_the_folder_may_be_another_at_the_next_start_and_an_older_step_is_not_taken(bench: Bench):
    step(bench, 7)
    assert versions(watching(bench)) == {0: {7}}
    (bench.root / "adapters").rename(bench.root / "old")
    step(bench, 4)
    (bench.root / "adapters").rename(bench.root / "elsewhere")
    done = watching(bench, policy={"watch": str(bench.root / "elsewhere")}, rounds=2)
    assert done.code == 0
    assert versions(done) == {0: {7}, 1: {7}}


def test_a_run_that_goes_on_without_its_folder_says_that_the_model_itself_samples(bench: Bench):
    step(bench, 7)
    said = "policy.watch is null: the model itself samples from here on, though policy 7 has sampled in this run"
    assert said not in watching(bench).stderr
    done = roll(bench, rounds=2)
    assert done.stderr.count(said) == 1
    assert versions(done) == {0: {7}, 1: {0}}
    assert said not in roll(bench, output={"path": str(bench.root / "unwatched")}).stderr


def test_by_rounds_a_round_that_is_open_ends_under_the_policy_that_began_it(bench: Bench):
    how: dict[str, Any] = {"batch": {"rows_per_shard": 2}, "policy": {"watch": str(bench.root / "adapters"), "update": "round"}}
    step(bench, 3)
    done = roll(bench, **how)
    assert versions(done) == {0: {3}}
    (done.output / "results" / "part-00000001.arrow").unlink()  # the round is open again
    step(bench, 9)
    done = roll(bench, **how, rounds=2)
    assert done.code == 0
    assert versions(done) == {0: {3}, 1: {9}}


def test_verify_finds_a_policy_that_is_damaged_or_gone(bench: Bench):
    step(bench, 2)
    done = watching(bench)
    folder = next((done.output / "policies").glob("2-*"))
    tensors = folder / "adapters.safetensors"
    whole = tensors.read_bytes()
    assert verify(done.output).exit_code == 0
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = verify(done.output)
    assert found.exit_code == 5
    assert f"wrong: {folder}: is not what policy {folder.name} was loaded from" in found.stdout
    assert "; restore it from a copy, or from step 2 of the trainer\n" in found.stdout
    tensors.write_bytes(whole)
    folder.rename(bench.root / "away")
    found = verify(done.output)
    assert found.exit_code == 5
    assert f"wrong: {folder}: policy {folder.name} is not kept there" in found.stdout


@pytest.mark.slow
def test_a_fixed_adapter_is_version_0_and_another_is_drift(bench: Bench):
    network = loaded(bench.model).network
    first, second = (write_adapter(bench.root / name, network, seed=seed) for name, seed in (("first", 1), ("second", 2)))
    done = roll(bench, policy={"adapter": str(first)})
    assert done.code == 0
    assert {record["policy_version"] for record in done.records} == {0}
    base = roll(bench, "--output", str(bench.root / "base"))
    assert base.records[0]["policy_sha"] != done.records[0]["policy_sha"]
    assert roll(bench, policy={"adapter": str(first.rename(bench.root / "moved"))}, rounds=2).code == 0
    again = roll(bench, policy={"adapter": str(second)}, rounds=3)
    assert again.code != 0
    assert "model.adapter" in again.stderr


def test_overwrite_removes_what_was_kept_and_nothing_else(bench: Bench):
    step(bench, 2)
    done = watching(bench)
    (done.output / "policies" / "notes.txt").write_text("mine")
    assert kept(done) == ["0", "2"]
    done = roll(bench, "--overwrite")
    assert done.code == 0
    assert kept(done) == ["0"]
    assert (done.output / "policies" / "notes.txt").is_file()


@pytest.mark.parametrize("kind", ["lora", pytest.param("dora", marks=pytest.mark.slow)])
def test_beside_a_fixed_adapter_the_base_is_the_reference(bench: Bench, kind: str):
    network = loaded(bench.model).network
    folder = write_adapter(bench.root / "adapter", network, kind)
    restore(network)  # mlx-lm's model files are as in a new process
    done = roll(bench, policy={"adapter": str(folder), "reference": "base"})
    assert done.code == 0, done.stderr
    gaps: list[float] = []
    for record in done.records:
        prompt, ids = record["prompt_ids"], record["completion_ids"]
        expected = log_probabilities(network, prompt + ids)[len(prompt) - 1 : -1][np.arange(len(ids)), ids]
        np.testing.assert_allclose(record["ref_logprobs"], expected, rtol=0, atol=2e-4)
        gaps += np.abs(np.subtract(record["logprobs"], record["ref_logprobs"])).tolist()
    assert np.mean(gaps) > 0.05


def test_an_adapter_that_does_not_fit_is_one_line(bench: Bench):
    folder = write_adapter(bench.root / "adapter", loaded(bench.model).network)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    done = roll(bench, policy={"adapter": str(folder)})
    assert done.code != 0
    assert "PEFT's format; expected mlx-lm's" in done.last_line
