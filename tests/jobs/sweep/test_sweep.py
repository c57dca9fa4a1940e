"""Tests sweeps in the real command: cells are ordinary runs, and models load once."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.cells import Cell
from mlx_bulk.configs.cells import cells as cells_of
from mlx_bulk.configs.sweep import SweepConfig
from mlx_bulk.jobs.sweep.sweep import in_loading_order, missing_paths
from mlx_bulk.runner.models import model_pool

from ...checkpoints import LLAMA, write_checkpoint
from ..support.bench import Bench, table_of
from ..support.sweep_runs import base_of, opened, run, table, written


def listed(bench: Bench) -> list[dict[str, Any]]:
    return json.loads((bench.root / "out/sweep.json").read_text())["cells"]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lists the models loaded from here on, by path and precision."""
    seen: list[str] = []
    real = model_pool.load_model

    def counted(config: Any, checkpoint: Any, memory: int, **how: Any) -> Any:
        seen.append(f"{Path(config.path).name} {config.dtype}")
        return real(config, checkpoint, memory, **how)

    monkeypatch.setattr(model_pool, "load_model", counted)
    return seen


def test_each_cell_is_the_run_that_its_settings_make_alone(bench: Bench):
    done = run(bench, matrix={"sampling.max_tokens": [2, 4], "data.limit": [2, 3]})
    assert done.code == 0
    assert done.last_line == f"sweep: 4 of 4 cells complete -> {bench.root}/out"
    assert [cell["overrides"] for cell in listed(bench)] == [
        {"sampling.max_tokens": tokens, "data.limit": limit} for tokens in (2, 4) for limit in (2, 3)
    ]
    for cell in listed(bench):
        alone = bench.run("--overwrite", *(f"--set={key}={value}" for key, value in cell["overrides"].items()))
        # The same requests in the same batches: not a bit differs.
        assert table_of(bench.root / "out" / cell["name"] / "results").equals(alone.table)


def test_a_sweep_over_the_settings_of_an_embedding_job(bench: Bench):
    base = {name: section for name, section in base_of(bench).items() if name != "sampling"} | {"job": "embed"}
    done = run(bench, base=base, matrix={"embed.pooling": ["mean", "lasttoken"], "embed.normalize": [True, False]})
    assert done.code == 0, done.stderr
    assert done.last_line == f"sweep: 4 of 4 cells complete -> {bench.root}/out"
    found = table(bench).to_pylist()
    assert [round(row["norm_mean"], 5) == 1 for row in found] == [True, False, True, False]
    assert [row["rows"] for row in found] == [5] * 4
    assert "mean norm" in done.stderr
    assert "64 × float32" in done.stderr


def test_the_same_command_continues_and_complete_cells_are_left(bench: Bench):
    assert run(bench, matrix={"data.limit": [2, 3]}).code == 0
    parts = {path: path.stat().st_mtime_ns for path in (bench.root / "out").rglob("part-*.arrow")}
    before = table(bench)
    done = run(bench, matrix={"data.limit": [2, 3, 4]})
    assert done.code == 0
    assert done.stderr.count("complete already") == 2
    assert len(table(bench)) == 3
    assert table(bench).slice(0, 2).equals(before)  # the seconds too: they are those of the start that did the work
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in parts.items())
    assert run(bench, "--overwrite", matrix={"data.limit": [2, 3, 4]}).stderr.count("complete already") == 0


def test_a_changed_base_leaves_table_and_report_and_tells_the_difference_once(bench: Bench):
    matrix = {"sampling.max_tokens": [2, 3]}
    assert run(bench, matrix=matrix).code == 0
    before = {name: (bench.root / "out" / name).read_bytes() for name in ("sweep.arrow", "sweep.json")}
    base = base_of(bench)
    base["prompt"] = {"text": "another {{ q }}"}
    done = run(bench, base=base, matrix=matrix)
    assert done.code == 4
    *_, reason, kept, last = re.split(r"\n(?=\[1\]|No cell|sweep:)", done.stderr.rstrip())
    assert reason.startswith("[1] this run was started with something else:")
    assert kept == "No cell did any work: sweep.arrow and the report stay as the last start left them."
    assert last.startswith("sweep: 0 of 2 cells complete, 2 failed; ")
    assert "[2]" not in done.stderr
    assert all((bench.root / "out" / name).read_bytes() == content for name, content in before.items())
    # What failed is told where the table has no figures that it would cost.
    (bench.root / "out/sweep.arrow").unlink()
    assert run(bench, base=base, matrix=matrix).code == 4
    assert [row["state"] for row in table(bench).to_pylist()] == ["failed", "failed"]
    assert run(bench, base=base, matrix=matrix).code == 4
    assert [row["state"] for row in table(bench).to_pylist()] == ["failed", "failed"]
    # A cell that is new does its work, and then the table is written.
    assert run(bench, base=base, matrix={"sampling.max_tokens": [2, 4]}).code == 4
    assert [row["state"] for row in table(bench).to_pylist()] == ["failed", "complete"]


@pytest.mark.slow
def test_models_are_loaded_once_each(bench: Bench, model: Path, loads: list[str]):
    other = write_checkpoint(bench.root / "other", LLAMA | {"num_hidden_layers": 1})
    matrix = {"data.limit": [1, 2], "model.path": [str(model), str(other)]}
    assert run(bench, matrix=matrix).code == 0
    assert loads == [f"{model.name} auto", "other auto"]
    loads.clear()
    assert run(bench, matrix=matrix | {"data.limit": [1, 2, 3]}).code == 0  # complete cells need none
    assert loads == [f"{model.name} auto", "other auto"]


def loads_of(cells: Sequence[Cell]) -> int:
    """Returns the number of loads when each cell keeps only what it needs."""
    held, count = set[str](), 0
    for cell in cells:
        needed = {cell.config.model.path} | ({cell.config.reference.path} if cell.config.reference else set())
        count += len(needed - held)
        held = needed
    return count


@pytest.mark.parametrize("models", [["a", "b"], ["a", "b", "c"], ["a", "r"]])
@pytest.mark.parametrize("references", [["r"], ["r", None], [None, "r"], ["r", "s"]])
def test_no_order_of_cells_with_references_loads_fewer_models(models: list[str], references: list[str | None]):
    base = {"job": "score", "model": {"path": "demo"}, "data": {"path": "x"}, "score": {"text": "x"}}
    matrix: dict[str, Any] = {"score.reference": references, "model.path": models}
    config = SweepConfig.model_validate({"job": "sweep", "base": base, "matrix": matrix, "output": {"path": "out"}})
    cells = cells_of(config, "x")
    ordered = in_loading_order(cells)
    assert sorted(cell.name for cell in ordered) == sorted(cell.name for cell in cells)
    assert loads_of(ordered) == min(map(loads_of, itertools.permutations(cells)))


def test_reward_models_count_among_the_models_of_a_cell(tmp_path: Path):
    base = {"job": "rollout", "model": "demo", "data": {"path": "demo:questions.jsonl"}, "prompt": {"text": "x"}}
    there = str(tmp_path)
    matrix: dict[str, Any] = {"rewards": [[{"model": f"{there}/a"}], [{"model": there}], [{"model": f"{there}/a", "weight": 2}]]}
    config = SweepConfig.model_validate({"job": "sweep", "base": base, "matrix": matrix, "output": {"path": "out"}})
    cells = cells_of(config, "x")
    assert in_loading_order(cells) == [cells[0], cells[2], cells[1]]
    assert missing_paths(cells) == [f"rewards[0].model.path: {there}/a does not exist; 2 of 3 cells will fail"]


def test_cells_of_the_same_models_keep_their_order(bench: Bench):
    cells = opened(written(bench, base_of(bench), matrix={"data.limit": [5, 1, 3]}))
    assert in_loading_order(cells) == cells


def test_options_reach_base_and_folder(bench: Bench, model: Path):
    base = base_of(bench) | {"model": {"path": "/nowhere"}, "data": {"path": "/nowhere.jsonl"}}
    rows = bench.write_rows([{"q": "x"}, {"q": "y"}], "other.jsonl")
    options = ("--model", str(model), "--data", str(rows), "--output", str(bench.root / "there"), "--set", "base.data.limit=1")
    done = run(bench, *options, base=base, matrix={"sampling.n": [1, 2]})
    assert done.code == 0
    assert table(bench, "there").column("records").to_pylist() == [1, 2]
    assert not (bench.root / "out").exists()
