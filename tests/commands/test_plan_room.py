"""Tests that a plan states the KV room of the run: less what newer weights and a reference may take."""

import json
from typing import Any

import mlx.core as mx
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.engine.engine import Engine
from mlx_bulk.runner.policies import policy_engine
from mlx_bulk.runner.policies.policy_engine import PolicyEngine

from ..jobs.support.bench import Bench
from ..jobs.support.rollout_runs import roll


@pytest.mark.parametrize(
    ("policy", "quarter", "weights"),
    [({}, 0, 0), ({"watch": "steps"}, 0, 1), ({"reference": "base"}, 1, 0), ({"watch": "steps", "reference": "base"}, 1, 1)],
    ids=["nothing", "weights", "reference", "both"],
)
def test_is_the_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch, policy: dict[str, str], quarter: int, weights: int):
    decoded: list[float] = []

    class Noting(PolicyEngine):
        def __init__(self, engine: Engine, *rest: Any):
            super().__init__(engine, *rest)
            decoded.append(engine._setup.limits.kv_bytes)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.chdir(bench.root)
    monkeypatch.setattr(policy_engine, "PolicyEngine", Noting)
    assert roll(bench, policy=policy).code == 0
    planned = CliRunner().invoke(cli, ["plan", "config.yaml", "--json"])
    found = json.loads(planned.stdout)
    assert decoded == [pytest.approx(found["kv_bytes_room"], rel=1e-6)]
    whole = found["kv_bytes_room"] + found["kv_bytes_aside"]
    stored: Any = mx.load(str(bench.model / "model.safetensors"))
    beside = whole - weights * sum(array.nbytes for array in stored.values())
    assert found["kv_bytes_room"] == pytest.approx(beside * (1 - 0.25 * quarter), rel=1e-6)
    said = CliRunner().invoke(cli, ["plan", "config.yaml"], env={"COLUMNS": "200"}).output
    assert ("more are kept for newer policies' full weights, or for a reference and reward models" in said) == bool(policy)
