"""Tests quantized weights on the CPU. They become float32 where memory allows; that changes bits, so it is recorded."""

import json
from pathlib import Path

import pytest
from mlx_bulk.configs.schema import BatchConfig, ModelConfig
from mlx_bulk.kernels import backend
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import size
from mlx_bulk.runner.pipeline import loading, run_spec

from ..checkpoints import PLENTY, write_quantized
from ..jobs.support.bench import Bench

pytestmark = pytest.mark.skipif(backend.device_name() != "cpu", reason="quantized weights are dequantized on the CPU alone")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, write_quantized(tmp_path / "model"))


def make_memory_small(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just too small for the weights as float32."""
    config = ModelConfig(path=str(bench.model))
    need, _ = size(config, find_checkpoint(config), PLENTY)

    def small(_: BatchConfig) -> int:
        return need - 1

    monkeypatch.setattr(run_spec, "memory_for", small)
    monkeypatch.setattr(loading, "memory_for", small)


def noted(bench: Bench) -> list[bool]:
    lines = map(json.loads, (bench.root / "run/sessions.jsonl").read_text().splitlines())
    return [line["quantized"] for line in lines if line["event"] == "start"]


@pytest.mark.slow
def test_a_deterministic_run_does_not_go_on_with_weights_held_otherwise(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    batch = {"deterministic": True, "rows": 2, "rows_per_shard": 2}
    first = bench.run(data={"limit": 2}, batch=batch)
    assert (first.code, noted(bench)) == (0, [False]), first.stderr
    with monkeypatch.context() as patch:
        make_memory_small(bench, patch)
        refused = bench.run(batch=batch)
    assert refused.code == 4
    assert "  model.dequantized: the run has true, batch.memory on this machine now gives false\n" in refused.stderr
    assert refused.last_line.endswith("--adopt model.dequantized goes on.")
    assert bench.run(batch=batch).code == 0


@pytest.mark.slow
def test_another_run_goes_on_and_notes_how_they_are_held(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    assert bench.run(data={"limit": 2}, batch={"rows_per_shard": 2}).code == 0
    make_memory_small(bench, monkeypatch)
    assert bench.run(batch={"rows_per_shard": 2}).code == 0
    assert noted(bench) == [False, True]
