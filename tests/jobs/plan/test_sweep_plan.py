"""Tests the plan of a sweep: differing rows read differently, and bad rows alone set the exit code."""

from pathlib import Path

import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli

from ..support.bench import Bench, Record


def planned(bench: Bench, matrix: Record, code: int = 0) -> list[str]:
    config = yaml.safe_load(bench.write_config().read_text())
    sweep = {"job": "sweep", "base": {key: value for key, value in config.items() if key != "output"}, "matrix": matrix}
    path = bench.root / "sweep.yaml"
    path.write_text(yaml.safe_dump({**sweep, "output": {"path": str(bench.root / "sweep")}}))
    result = CliRunner().invoke(cli, ["plan", str(path), "--log-level", "error"])
    assert result.exit_code == code, result.output
    return result.stdout.splitlines()


def rows_file(folder: Path, *names: str) -> str:
    path = folder.joinpath(*names)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"q": "a"}\n')
    return str(path)


def test_rows_of_paths_with_the_same_end_differ(bench: Bench):
    deep = ["a_folder_with_quite_a_long_name"] * 3
    paths = [rows_file(bench.root, which, *deep, "rows.jsonl") for which in ("one", "two")]
    head, first, second, _ = planned(bench, {"data.path": paths, "sampling.n": [1]})
    assert head.split()[:3] == ["path", "n", "rows"]
    assert first.startswith(f"…/one/{deep[0]}/")
    assert second.startswith(f"…/two/{deep[0]}/")


def test_two_keys_that_end_alike_are_told_apart(bench: Bench):
    path = rows_file(bench.root, *["a_folder_with_quite_a_long_name"] * 4, "rows.jsonl")
    head, *_ = planned(bench, {"data.path": [path], "model.path": [str(bench.model)]})
    assert head.split()[:2] == ["data.path", "model.path"]


def test_a_cell_with_only_bad_rows_sets_the_exit_code(bench: Bench):
    planned(bench, {"prompt.text": ["{{ q }}", "{{ q.gone.far }}"]}, code=3)
