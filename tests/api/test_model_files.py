"""Tests that mlx-lm's model files are the caller's again between calls: training needs their own functions."""

import json

import mlx_bulk
import pytest
from mlx_bulk import memory_run
from mlx_bulk.kernels import native
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.pipeline import progress_display
from mlx_lm.models import llama

from ..jobs.support.bench import Bench

pytestmark = pytest.mark.skipif(native.library() is None, reason="no kernels for this device")


def functions_of_ours() -> list[str]:
    """The names in mlx-lm's file under which functions of ours stand."""
    ours = {id(ours) for _, ours in kernel_injection._ON_CPU}  # pyright: ignore[reportPrivateUsage]
    return [name for name, value in vars(llama).items() if id(value) in ours]


def test_a_model_has_our_kernels_only_within_its_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = mlx_bulk.load(str(bench.model))
    assert functions_of_ours() == []
    within: list[list[str]] = []

    class Watched(progress_display.Watch):
        def __enter__(self) -> progress_display.Watch:
            within.append(functions_of_ours())
            return super().__enter__()

    monkeypatch.setattr(memory_run, "Watch", Watched)
    for call in (lambda: loaded.generate(["O"], max_tokens=2), lambda: loaded.score(["A text"])):
        call()
        assert within.pop()
        assert functions_of_ours() == []


def test_a_run_takes_them_out_at_its_end(bench: Bench) -> None:
    config = bench.write_config()
    mlx_bulk.run(config, progress="nothing")
    lines = [json.loads(line) for line in (bench.root / "run" / "sessions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0]["substitutes"]
    assert functions_of_ours() == []
    with pytest.raises(mlx_bulk.BulkError):
        mlx_bulk.run(config, ["prompt.text={{ nothing }}", "on_error=fail"], progress="nothing")
    assert functions_of_ours() == []
    base = {"job": "generate", "model": {"path": bench.model}, "data": {"path": bench.root / "rows.jsonl"}, "prompt": {"text": "{{ q }}"}}
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.max_tokens": [1]}, "output": {"path": bench.root / "sweep"}}
    assert [cell.state for cell in mlx_bulk.sweep(sweep, progress="nothing")] == ["complete"]
    assert functions_of_ours() == []
