"""Tests ``verify --rescore`` and ``--replay`` on real runs: correct runs pass, logprobs of another policy fail."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_bulk.jobs.verify.logprob_diff import ALL, LogprobComparison, comparison_as_json, comparison_as_text
from mlx_bulk.jobs.verify.verify import verify_exit_code
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.pipeline import stored_model
from mlx_bulk.runner.pipeline.loading import LoadedModels
from mlx_bulk.runner.policies.policy_source import DONE
from mlx_bulk.runner.policies.policy_store import PolicyStore
from mlx_bulk.runner.rescore.logprob_gap import LARGEST, LogprobGap
from mlx_bulk.runner.runs.audit import Audit

from ...adapters import write_adapter, write_full
from ...checkpoints import loaded
from ..support.bench import Bench, Done
from ..support.rollout_runs import roll
from .test_verify import verify

FILTERED = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 12}


def anew(bench: Bench, how: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and the comparison."""
    result = verify(bench.root / "run", how, "--json")
    return result.exit_code, json.loads(result.stdout)["anew"]


def figures(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["policy"].split("-")[0], row["figure"]): row for row in found["differences"]}


def two_versions(bench: Bench, kind: str = "lora", **sections: Any) -> Done:
    """A run of two rounds: the base model sampled the first, a newer policy the second."""
    watch = bench.root / "adapters"
    settings: dict[str, Any] = {
        "sampling": FILTERED,
        "policy": {"watch": str(watch), "reference": "base"},
        "logprobs": {"kept": True},
    } | sections
    assert roll(bench, **settings).code == 0
    network = loaded(bench.model).network
    if kind == "checkpoint":
        shutil.copytree(bench.model, watch / "step_000004")
        weights: list[tuple[str, mx.array]] = tree_flatten(network.parameters())  # pyright: ignore[reportAssignmentType]
        moved = {name: w * 1.03 if "proj" in name else w for name, w in weights}
        mx.save_safetensors(str(watch / "step_000004" / "model.safetensors"), moved, {"format": "mlx"})
        (watch / "step_000004" / DONE).touch()
    elif kind == "full":
        write_full(watch / "step_000004", network)
    else:
        write_adapter(watch / "step_000004", network, kind)
    return roll(bench, **settings, rounds=2)


@pytest.mark.parametrize("kind", ["lora", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("dora", "full", "checkpoint"))])
def test_each_record_is_scored_under_its_own_version(bench: Bench, kind: str):
    done = two_versions(bench, kind)
    assert done.code == 0
    assert {(record["round"], record["policy_version"]) for record in done.records} == {(0, 0), (1, 4)}
    code, found = anew(bench, "--rescore")
    assert code == 0
    assert (found["passed"], found["records"], found["left_out"]) == (True, 40, {})
    rows = figures(found)
    assert rows.keys() == {(p, f) for p in ("0", "4", "all") for f in ("logprobs", "tempered_logprobs", "sampled_logprobs")}
    tokens = sum(len(record["completion_ids"]) for record in done.records)
    for (policy, _), row in rows.items():
        assert row["max"] <= 2e-4
        assert row["mean"] <= 3e-5
        assert row["k3"] <= 1e-8
        assert policy != "all" or row["tokens"] == tokens
    base = [np.abs(np.subtract(r["ref_logprobs"], r["logprobs"])).max() for r in done.records if r["policy_version"] == 0]
    assert max(base) <= 2e-4  # the reference is the policy itself
    assert np.mean([np.abs(np.subtract(r["ref_logprobs"], r["logprobs"])).mean() for r in done.records if r["policy_version"] == 4]) > 0.01


@pytest.mark.parametrize("wrong", [pytest.param("0", marks=pytest.mark.slow), "4"])
def test_under_the_other_version_it_fails(bench: Bench, wrong: str, monkeypatch: pytest.MonkeyPatch):
    """Scores one version's records with the other's weights."""
    assert two_versions(bench).code == 0

    def swapped(store: PolicyStore, name: str) -> Any:
        names = sorted(path.name for path in store.root.glob("*-*"))
        return right(store, names[1] if names[0] == name else names[0]) if name.startswith(f"{wrong}-") else right(store, name)

    right = PolicyStore.policy
    monkeypatch.setattr(PolicyStore, "policy", swapped)
    code, found = anew(bench, "--rescore")
    assert (code, found["passed"]) == (5, False)
    for (policy, _), row in figures(found).items():
        assert (row["mean"] > 0.01) == (policy in (wrong, "all"))
    assert "beyond float32's bounds" in verify(bench.root / "run", "--rescore").stdout


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.7}, {"temperature": 0.7, "repetition_penalty": 1.3}, pytest.param({"temperature": 1.0}, marks=pytest.mark.slow)],
)
def test_runs_that_only_generate(bench: Bench, sampling: dict[str, Any]):
    assert bench.run(sampling=sampling | {"n": 2}).code == 0
    code, found = anew(bench, "--rescore")
    assert (code, found["records"], found["passed"]) == (0, 10, True)
    assert ("all", "logprobs") in figures(found)
    assert (("all", "sampled_logprobs") in figures(found)) == (sampling == {"temperature": 0.7})
    assert bool(found["left_out"]) == ("repetition_penalty" in sampling)


@pytest.mark.parametrize(
    "more", [{"xtc_probability": 0.5, "xtc_threshold": 0.02, "top_k": 50}, pytest.param({"typical_p": 0.5}, marks=pytest.mark.slow)]
)
def test_kept_ids_give_the_sampled_logprobs_of_every_filter(bench: Bench, more: dict[str, Any]):
    assert roll(bench, sampling={"n": 4, "max_tokens": 6, **more}, logprobs={"kept": True}).code == 0
    code, found = anew(bench, "--rescore")
    assert (code, found["passed"], found["left_out"]) == (0, True, {})
    assert figures(found)["all", "sampled_logprobs"]["max"] <= 2e-4


def test_what_cannot_be_worked_out_is_said(bench: Bench):
    assert roll(bench, sampling=FILTERED).code == 0
    result = verify(bench.root / "run", "--rescore")
    assert result.exit_code == 0
    reason = "filters (top_k, top_p, min_p, typical_p, XTC) without logprobs.kept; --replay works them out"
    assert f"left out: 20 records: sampled_logprobs: {reason}" in result.stdout
    assert result.stdout.endswith("within float32's bounds (max 2e-04, mean 3e-05)\n")


@pytest.mark.parametrize("job", [pytest.param("generate", marks=pytest.mark.slow), "rollout"])
def test_a_replay_is_the_same_to_the_bit_in_deterministic_mode(bench: Bench, job: str):
    sampling = FILTERED | {"n": 2, "repetition_penalty": 1.2}
    batch = {"deterministic": True, "rows": 3, "rows_per_shard": 3}
    sections: dict[str, Any] = {"sampling": sampling, "batch": batch}
    if job == "rollout":
        sections["policy"] = {"adapter": str(write_adapter(bench.root / "adapter", loaded(bench.model).network))}
    assert bench.run(job=job, **sections).code == 0
    code, found = anew(bench, "--replay")
    assert (code, found["exact"], found["passed"], found["records"], found["diverged"]) == (0, True, True, 10, 0)
    rows = figures(found)
    assert rows["all", "sampled_logprobs"]["tokens"] > 50
    assert [row["max"] for row in rows.values()] == [0.0] * len(rows)


@pytest.mark.slow
def test_a_replay_of_two_versions_stays_within_the_bounds(bench: Bench):
    assert two_versions(bench).code == 0
    code, found = anew(bench, "--replay")
    assert (code, found["exact"], found["passed"], found["records"]) == (0, False, True, 40)
    assert figures(found)["4", "sampled_logprobs"]["max"] <= 2e-4


def test_a_replay_notices_other_weights(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    assert bench.run(sampling=FILTERED, batch={"deterministic": True, "rows": 3, "rows_per_shard": 3}).code == 0

    def turned(_: stored_model.RunModel, loaded: LoadedModels) -> Iterator[tuple[str | None, str, Setup]]:
        network = loaded.model.network
        network.update({"lm_head": {"weight": network.lm_head.weight * (1 + 2.0**-12)}})
        yield None, "the model", loaded.setup

    monkeypatch.setattr(stored_model.RunModel, "policies", turned)
    code, found = anew(bench, "--replay")
    assert (code, found["passed"]) == (5, False)


@pytest.mark.parametrize("how", ["--rescore", "--replay"])
def test_scores_are_not_computed_again(bench: Bench, how: str):
    assert bench.score(rows=[{"q": "a b c"}], score={"text": "{{ q }}"}).code == 0
    result = verify(bench.root / "run", how)
    assert result.exit_code == 5
    records = "only records of generate, rollout, embed and classify can be computed again"
    can = records if how == "--rescore" else "only completions can be decoded again (generate, rollout)"
    assert f"is a run of job: score; {can}. Verify it without {how}." in result.stderr


@pytest.mark.slow
def test_a_policy_that_is_gone_and_a_model_that_is_another(bench: Bench, tmp_path: Path):
    done = two_versions(bench)
    (kept,) = (done.output / "policies").glob("4-*")
    shutil.move(kept / "adapters.safetensors", tmp_path / "aside")
    result = verify(done.output, "--rescore")
    assert result.exit_code != 0
    assert f"{kept}: is not what policy {kept.name} was loaded from" in result.stderr
    shutil.move(tmp_path / "aside", kept / "adapters.safetensors")
    weights = bench.model / "model.safetensors"
    content = weights.read_bytes()
    try:
        weights.write_bytes(content[:-4] + b"\0\0\0\0")
        result = verify(done.output, "--rescore")
    finally:
        weights.write_bytes(content)
    assert "model.weights is not what the run was made with" in result.stderr


# ------------------------------------------------------------------------------------------------------------- the sums


def test_the_sums_in_closed_form():
    found = LogprobGap()
    found.add(np.array([-1.0, -2.0, -np.inf], np.float32), np.array([-0.5, -2.25, -np.inf], np.float32))
    found.add(np.array([-3.0], np.float32), np.array([-3.0], np.float32))
    assert (found.tokens, found.mean, found.largest) == (4, 0.75 / 4, 0.5)
    assert found.k3 == pytest.approx((np.exp(0.5) - 1.5 + np.exp(-0.25) - 0.75) / 4)
    assert LogprobGap().mean is None


@pytest.mark.parametrize("other", [np.nan, -np.inf])
def test_a_logprob_of_nan_differs_without_bound(other: float):
    found = LogprobComparison("rescored", float32=True)
    found.add("0-a", "logprobs", np.array([-1.0, -2.0], np.float32), np.array([-1.0, other], np.float32))
    assert not found.passed
    assert found.differences[ALL, "logprobs"].largest == np.inf


@pytest.mark.parametrize(("off", "passed"), [(0.9 * LARGEST, True), (1.1 * LARGEST, False)])
def test_the_bounds_hold_for_float32_alone(off: float, passed: bool):
    for float32 in (True, False):
        found = LogprobComparison("rescored", float32)
        found.add("0-a", "logprobs", np.zeros(1000, np.float32), np.array([off] + [0.0] * 999, np.float32))
        assert found.passed == (passed or not float32)


def test_nothing_to_compare_says_why():
    assert "no record is finished yet" in comparison_as_text(LogprobComparison("rescored", float32=True))
    assert "no record has logprobs" in comparison_as_text(LogprobComparison("replayed", float32=True, records=2))


@pytest.mark.parametrize("how", ["--rescore", "--replay"])
def test_before_a_shard_is_done_there_is_nothing_to_compare(bench: Bench, how: str):
    done = roll(bench, sampling={"n": 2})
    assert done.code == 0
    (done.output / "commits.jsonl").write_text("")
    result = verify(done.output, how)
    assert result.exit_code == 5
    assert "nothing to compare: no record is finished yet" in result.stdout


def test_versions_are_listed_as_numbers():
    found = LogprobComparison("rescored", float32=True)
    for policy in ("10-b", "2-a", "9-c"):
        found.add(policy, "logprobs", np.zeros(1, np.float32), np.zeros(1, np.float32))
    assert [row["policy"] for row in comparison_as_json(found)["differences"]] == ["2-a", "9-c", "10-b", ALL]  # pyright: ignore
    lines = comparison_as_text(found).splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["2-a", "9-c", "10-b", ALL]


def test_a_sound_run_that_is_not_complete_passes_if_its_logprobs_do():
    found = Audit(Path("run"), "rollout", rows=4, resolved=2, open_shards=[1])
    within, beyond = LogprobComparison("rescored", float32=True), LogprobComparison("rescored", float32=True)
    within.add("0-a", "logprobs", np.zeros(1, np.float32), np.zeros(1, np.float32))
    beyond.add("0-a", "logprobs", np.zeros(1, np.float32), np.ones(1, np.float32))
    assert [verify_exit_code(found, anew) for anew in (None, within, beyond)] == [5, 0, 5]
    found.errors["generate", "NaN"] += 1
    assert verify_exit_code(found, within) == 3
    found.note("results", "is damaged", "it does it again")
    assert verify_exit_code(found, within) == 5
