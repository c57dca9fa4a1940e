"""Tests policies that change during a job: each outcome's logprobs are those of its own policy, by a full forward."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ...adapters import write_adapter, write_full
from ..support.naive_truth import DECODE_TOLERANCE, log_probabilities
from ..support.policies import PER_SHARD, SAMPLES, SHARDS, WANTED, Run, assert_each_is_its_own_versions, shards, under, versions, windows_of
from ..support.tiny import fresh
from ..support.tiny_runs import engine_of

QUICK = (("beside", "lora"),)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(("padded", "exact", "beside"), ("lora", "dora", "full"))
    ],
)
def test_an_update_in_the_middle_of_a_job(kind: str, way: str, tmp_path: Path):
    """beside: rows decode between the calls of a prefill."""
    watch = tmp_path / "adapters"
    run = Run(tmp_path, watch, **({"tokens": 16, "prefill_tokens": 4} if way == "beside" else {"way": way}))

    def trainer(number: int) -> None:
        if number == 2:
            step = watch / "step_000012"
            write_full(step, fresh(), seed=7) if kind == "full" else write_adapter(step, fresh(), kind, seed=7)

    outcomes = run.outcomes(windows_of(shards(), trainer))
    assert len(outcomes) == PER_SHARD * SHARDS * SAMPLES
    assert versions(outcomes) == {0: {0}, 1: {0}, 2: {12}, 3: {12}}
    assert_each_is_its_own_versions(run, outcomes)


def test_without_the_drain_rows_see_two_policies_and_the_comparison_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A swap as the window is handed out, with the rows before it in flight and their caches kept."""
    watch = tmp_path / "adapters"
    run = Run(tmp_path, watch)

    def trainer(number: int) -> None:
        if number == 1:
            write_adapter(watch / "step_000012", fresh(), seed=7)
            run.updater.load_newest()

    outcomes = run.outcomes(windows_of(shards(), trainer))
    with pytest.raises(AssertionError):
        assert_each_is_its_own_versions(run, outcomes)


def test_the_engine_refuses_other_weights_while_rows_are_in_flight(tmp_path: Path):
    run = Run(tmp_path)
    engine = engine_of(run.setup)
    running = engine.run(windows_of(shards()))
    next(running)
    with pytest.raises(AssertionError, match="in flight"):
        engine.renew()


def test_by_rounds_a_policy_waits_for_the_next_one(tmp_path: Path):
    watch = tmp_path / "adapters"
    run = Run(tmp_path, watch)

    def trainer(number: int) -> None:
        if number == 1:
            write_adapter(watch / "step_3", fresh())

    outcomes = run.outcomes(windows_of(shards(), trainer), unit=lambda position: position // (2 * PER_SHARD))
    assert versions(outcomes) == {0: {0}, 1: {0}, 2: {3}, 3: {3}}


def test_the_newest_complete_one_is_taken_and_what_is_not_is_refused_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    watch = tmp_path / "adapters"
    run = Run(tmp_path, watch)
    broken = watch / "step_000005" / "adapters.safetensors"

    def trainer(number: int) -> None:
        if number == 1:
            write_adapter(watch / "step_000003", fresh(), seed=1)
            write_adapter(watch / "step_000004", fresh(), seed=2)
            write_adapter(watch / "step_000005", fresh(), seed=3)
            broken.write_bytes(broken.read_bytes()[:1000])
            write_adapter(watch / "step_000006", fresh(), seed=4, done=False)
            (watch / "notes").mkdir()
        if number == 3:
            write_adapter(watch / "step_000005", fresh(), seed=3)

    with caplog.at_level("INFO", logger="mlx_bulk"):
        outcomes = run.outcomes(windows_of(shards(), trainer))
    assert versions(outcomes) == {0: {0}, 1: {4}, 2: {4}, 3: {5}}
    assert run.updater.refused == 1
    refused = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
    assert len(refused) == 1
    assert "step_000005" in refused[0]
    assert "policy 0 goes on" in refused[0]
    said = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert len(said) == 2
    assert any("step_000006" in line and "DONE" in line for line in said)
    assert any("notes" in line for line in said)
    assert run.updater.newest_version() == 5
    assert_each_is_its_own_versions(run, outcomes)


def test_a_second_start_takes_the_newest_and_never_an_older_one(tmp_path: Path):
    watch = tmp_path / "adapters"
    write_adapter(watch / "step_000003", fresh(), seed=1)
    first = Run(tmp_path, watch)
    assert first.updater.policy.version == 3
    write_adapter(watch / "step_000007", fresh(), seed=2)
    second = Run(tmp_path, watch)
    assert second.updater.policy.version == 7
    for step in ("step_000003", "step_000007"):
        for file in (watch / step).iterdir():
            file.unlink()
    third = Run(tmp_path, watch)  # the trainer has removed its folders: what the run has kept goes on
    assert (third.updater.policy.version, third.updater.policy.sha) == (7, second.updater.policy.sha)
    assert sorted(path.name for path in third.root.iterdir() if path.is_dir()) == sorted(
        policy.name
        for policy in (
            replace(first.updater.policy, version=0, sha=third.store.keep_base().sha),
            first.updater.policy,
            second.updater.policy,
        )
    )


def test_stored_policies_do_not_change_with_the_trainers_files(tmp_path: Path):
    watch = tmp_path / "adapters"
    write_adapter(watch / "step_1", fresh(), seed=1)
    run = Run(tmp_path, watch)
    kept = run.store.policy(run.updater.policy.name).adapter
    assert kept is not None
    write_adapter(watch / "step_1", fresh(), seed=2)
    run.store.policy(run.updater.policy.name)
    with (kept / "adapters.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(Exception, match="is not what policy 1-"):
        run.store.policy(run.updater.policy.name)


@pytest.mark.slow
def test_policies_given_from_python(tmp_path: Path):
    run = Run(tmp_path)
    folder = write_adapter(tmp_path / "mine", fresh(), seed=5)

    def trainer(number: int) -> None:
        if number == 1:
            run.given.add(folder, 40)

    outcomes = run.outcomes(windows_of(shards(), trainer))
    assert versions(outcomes) == {0: {0}, 1: {40}, 2: {40}, 3: {40}}
    assert_each_is_its_own_versions(run, outcomes)


@pytest.mark.slow
def test_an_echo_after_an_update_of_the_head_is_the_new_policys(tmp_path: Path):
    """The head apart that the engine began with is the base's."""
    run = Run(tmp_path)
    run.setup = replace(run.setup, wanted=replace(WANTED, echo=True))
    folder = write_adapter(tmp_path / "head", fresh(), keys=("lm_head",))

    def trainer(number: int) -> None:
        if number == 2:
            run.given.add(folder, 1)

    for outcome in run.outcomes(windows_of(shards(), trainer)):
        assert outcome.policy is not None
        assert outcome.echo is not None
        prompt = next(each.prompt.ids.tolist() for window in shards() for each in window if each.row == outcome.row)
        truth = log_probabilities(under(folder if outcome.policy.version else None), prompt)
        found = truth[np.arange(len(prompt) - 1), prompt[1:]]
        np.testing.assert_allclose(outcome.echo.logprobs, found, rtol=0, atol=DECODE_TOLERANCE)
