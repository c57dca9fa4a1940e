"""Tests ``mlx-bulk status`` on a sweep's folder: one line for each cell, also for cells that never started."""

import json
import shutil
from typing import Any

import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..support.bench import ROWS, Bench


def shown(bench: Bench, *options: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["status", str(bench.root / "sweep"), *options])
    assert result.exit_code == code, result.output
    return result.stdout


def test_a_sweep_is_told_by_its_cells(bench: Bench):
    base: dict[str, Any] = yaml.safe_load(bench.write_config(rows=[*ROWS, {"id": "f", "q": None}]).read_text())
    del base["output"]
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.max_tokens": [2, 3]}, "output": {"path": str(bench.root / "sweep")}}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep))
    assert CliRunner().invoke(cli, ["run", str(path), "--no-supervised"]).exit_code == 3
    done, left = (cell["name"] for cell in json.loads((bench.root / "sweep/sweep.json").read_text())["cells"])
    shutil.rmtree(bench.root / "sweep" / left)
    first, continued, _, heading, complete, waiting = shown(bench).splitlines()
    assert continued == f"continue  mlx-bulk run {path} --no-supervised"
    assert first == f"sweep     {bench.root / 'sweep'}: 2 cells: 1 complete, 1 waiting"
    assert heading.split() == ["cell", "state", "rows", "errors"]
    assert complete.split() == [done, "complete", "6", "of", "6", "(100", "%)", "1"]
    assert waiting.split() == [left, "waiting"]
    one, other = json.loads(shown(bench, "--json"))["cells"]
    assert (one["name"], one["status"]["state"], one["status"]["errors"]) == (done, "complete", 1)
    assert (other["name"], other["status"]) == (left, None)
    shutil.rmtree(bench.root / "sweep" / done)  # it knew the command
    assert shown(bench).splitlines()[1] == "continue  the command that started it"


def test_a_failed_cell_is_told_with_its_reason(bench: Bench):
    base: dict[str, Any] = yaml.safe_load(bench.write_config().read_text())
    del base["output"]
    matrix = {"data.path": [base["data"]["path"], str(bench.root / "gone.jsonl")]}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump({"job": "sweep", "base": base, "matrix": matrix, "output": {"path": str(bench.root / "sweep")}}))
    assert CliRunner().invoke(cli, ["run", str(path), "--no-supervised"]).exit_code == 5
    text = shown(bench, code=5)
    assert "2 cells: 1 complete, 1 failed" in text
    assert "gone.jsonl" in text.splitlines()[-1]
    done, failed = json.loads(shown(bench, "--json", code=5))["cells"]
    assert (done["state"], done["error"]) == ("complete", None)
    assert failed["state"] == "failed"
    assert "gone.jsonl" in failed["error"]
    base["data"]["path"] = str(bench.write_rows(ROWS[:2], "gone.jsonl"))
    assert CliRunner().invoke(cli, ["run", str(path), "--no-supervised"]).exit_code == 0
    text = shown(bench)
    assert "2 complete" in text
    assert "continue" not in text


def test_a_notice_comes_once_a_sweep(bench: Bench):
    sections = {"model": {"path": str(bench.model)}, "data": {"path": str(bench.write_rows(ROWS))}}
    base = {"job": "score", **sections, "score": {"text": "always the same"}}
    sweep = {"job": "sweep", "base": base, "matrix": {"batch.rows": [1, 2]}, "output": {"path": str(bench.root / "sweep")}}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep))
    for command in (["run", str(path), "--no-supervised"], ["plan", str(path)]):
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        assert result.stderr.count("the same text for each row") == 1


def test_a_damaged_list_of_cells_is_reported(bench: Bench):
    (bench.root / "sweep").mkdir()
    (bench.root / "sweep/sweep.json").write_text("{")
    result = CliRunner().invoke(cli, ["status", str(bench.root / "sweep")])
    assert result.exit_code == 5
    assert "sweep.json cannot be read" in result.stderr
    assert "Run the sweep's command again" in result.stderr
