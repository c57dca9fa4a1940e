"""Tests ``mlx-bulk status`` on run directories with damaged or missing files."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.runs.status import run_status

from ..jobs.support.run_states import failure, path, point, shown, started, work

__all__ = ["path"]


@pytest.fixture
def stopped(path: Path) -> Path:
    with RunDir.open(path) as run:
        work(run, range(6))
        started(run, ago=30)
        point(run, 6)
        run.session_ended({"how": "stopped", "rows": 6, "errors": 0})
    return path


def test_a_damaged_run_json(stopped: Path):
    (stopped / "run.json").write_text("{")
    found = run_status(stopped)
    assert (found.state, found.rows, found.of, found.config) == ("stopped", 6, None, None)
    text = shown(stopped)
    assert "note      run.json: is damaged, so how many rows the run has is not known; the next start rebuilds it\n" in text
    assert "rows      6; 2 in the journal, not in results/ yet\n" in text
    assert "continue  the command that started it\n" in text


@pytest.mark.parametrize("name", ["metrics.jsonl", "sessions.jsonl", "commits.jsonl", "summary.json", "inputs.json", ".lock"])
def test_other_files_may_be_missing(stopped: Path, name: str):
    (stopped / name).unlink(missing_ok=True)
    found = run_status(stopped)
    assert found.of == 8
    assert found.notes == []
    shown(stopped)


@pytest.mark.parametrize("name", ["metrics.jsonl", "sessions.jsonl", "commits.jsonl"])
def test_damaged_lines_are_reported(stopped: Path, name: str):
    file = stopped / name
    file.write_bytes(file.read_bytes() + b'{"rows":9,"check":"0000000000000000"}\n{"torn')
    assert run_status(stopped).notes == [f"{name}: left out here, as they are damaged: 1 line; the next start sets them aside"]
    assert run_status(stopped).rows == 6


def test_a_missing_part_is_reported(path: Path):
    with RunDir.open(path) as run:
        work(run, range(1, 4), [failure(0, "no")])
    (path / "errors/part-00000000.arrow").unlink()
    [note] = run_status(path).notes
    assert "commits.jsonl says it is there, but it is not" in note


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(RunDirError, match=r"is not a run directory: it holds no run\.json"):
        run_status(tmp_path)
    result = CliRunner().invoke(cli, ["status", str(tmp_path / "gone")])
    assert result.exit_code == 5
    assert "there is no such folder" in result.stderr
