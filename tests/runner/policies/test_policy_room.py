"""Tests room for full weights beside the base's: it is taken from the KV caches, or full weights are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.rollout import RolloutConfig
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.policies.policy_engine import full_weights_fit, policy_engine_of
from mlx_bulk.runner.policies.policy_source import GivenSource, PolicySource
from mlx_bulk.runner.policies.policy_updater import PolicyUpdater

from ...adapters import write_adapter, write_full
from ..support.policies import Run, shards, versions, windows_of
from ..support.tiny import fresh
from ..support.tiny_runs import engine_of

CONFIG = RolloutConfig.model_validate(
    {
        "job": "rollout",
        "model": {"path": "demo"},
        "data": {"path": "rows.jsonl"},
        "prompt": {"text": "{{ q }}"},
        "output": {"path": "run"},
    }
)


def given_room(run: Run, weights: float) -> Setup:
    """The run's setup with as much room for KV caches as ``weights`` times the base's arrays."""
    return replace(run.setup, limits=replace(run.setup.limits, kv_bytes=weights * run.adapters.nbytes))


@pytest.mark.parametrize(
    ("room", "source", "left"),
    [(5.0, GivenSource(), 4.0), (2.0, GivenSource(), 1.0), (1.9, GivenSource(), 1.9), (5.0, None, 5.0)],
    ids=["plenty", "just", "too little", "no updates"],
)
def test_the_room_for_kv_caches(tmp_path: Path, room: float, source: PolicySource | None, left: float):
    run, asked = Run(tmp_path), list[Setup]()
    setup = given_room(run, room)

    def engine(setup: Setup, reference: Setup | None) -> Any:
        asked.append(setup)
        return engine_of(setup)

    updater = PolicyUpdater(run.adapters, run.store, None, source, full_weights_fit(setup))
    policy_engine_of(updater, engine, setup, None, CONFIG, Layout(12, 3))
    assert [each.limits.kv_bytes / run.adapters.nbytes for each in asked] == [pytest.approx(left)]


@pytest.mark.parametrize("write", [write_full, write_adapter], ids=["full", "lora"])
def test_where_there_is_no_room_full_weights_are_refused_and_adapters_taken(
    tmp_path: Path, write: Callable[..., Path], caplog: pytest.LogCaptureFixture
):
    run = Run(tmp_path)
    run.updater = PolicyUpdater(run.adapters, run.store, None, run.given, full_weights_fit(given_room(run, 1.9)))

    def trainer(number: int) -> None:
        if number == 1:
            run.given.add(write(tmp_path / "step", fresh()), 3)

    with caplog.at_level("WARNING", logger="mlx_bulk"):
        outcomes = run.outcomes(windows_of(shards(), trainer))
    refused = write is write_full
    assert versions(outcomes)[3] == {0 if refused else 3}
    assert run.updater.refused == refused
    assert ("kB beside the base's, more than half of the room for KV caches; raise batch.memory" in caplog.text) == refused
