"""Tests the closing lines and exit codes of runs, and that the command that continues a run does not remove it."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.files import disk_space
from mlx_bulk.runner.pipeline import loading, model_work, session
from mlx_bulk.runner.runs.run_dir import RunDir

from ..support.bench import Bench


class Usage(NamedTuple):
    """The result of ``shutil.disk_usage``."""

    total: int
    used: int
    free: int


ONE_BY_ONE: dict[str, Any] = {"batch": {"rows": 1}}


def signal_with_an_outcome(patch: pytest.MonkeyPatch, nth: int) -> None:
    """Makes the process send itself SIGINT when the model has done its ``nth`` row."""
    real, done = model_work.isolated_outcomes, itertools.count(1)

    def signalling(*arguments: Any) -> Iterator[Any]:
        for outcome in real(*arguments):
            if next(done) == nth:
                os.kill(os.getpid(), signal.SIGINT)
            yield outcome

    patch.setattr(model_work, "isolated_outcomes", signalling)


def signal_in_statistics(patch: pytest.MonkeyPatch) -> None:
    real = RunDir.write_statistics

    def signalled(self: RunDir, statistics: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(self, statistics)

    patch.setattr(RunDir, "write_statistics", signalled)


@pytest.mark.parametrize(("options", "command"), [((), "the same command"), (("--overwrite",), "the same command without --overwrite")])
def test_the_command_that_continues_keeps_what_is_finished(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], command: str
):
    with monkeypatch.context() as patch:
        signal_with_an_outcome(patch, nth=2)
        stopped = bench.run(*options, **ONE_BY_ONE)
    assert stopped.code == 130
    assert stopped.last_line.startswith(f"stopped; {command} continues: ")
    continued = bench.run(**ONE_BY_ONE)
    assert (continued.code, len(continued.records)) == (0, 5)
    assert " 5 of 5 rows; " in continued.last_line
    assert " + 30 generated" not in continued.last_line  # not all of it again


def test_a_signal_when_all_is_done_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    signal_in_statistics(monkeypatch)
    done = bench.run()
    assert done.code == 0
    assert done.last_line.startswith("complete: 5 of 5 rows; ")
    monkeypatch.undo()
    assert bench.run().last_line.startswith("complete already: ")


def test_a_signal_when_all_is_done_leaves_the_code_of_quarantined_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    signal_in_statistics(monkeypatch)
    done = bench.run(rows=[{"q": "a"}, {"q": None}])
    assert done.code == 3
    assert done.last_line.startswith("complete: 2 of 2 rows, 1 quarantined in errors/; ")


def sweep_of(bench: Bench) -> Path:
    base = yaml.safe_load(bench.write_config(**ONE_BY_ONE).read_text(encoding="utf-8"))
    del base["output"]
    path = bench.root / "sweep.yaml"
    config = {"job": "sweep", "base": base, "matrix": {"data.limit": [2, 3]}, "output": {"path": str(bench.root / "out")}}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def test_a_sweep_names_the_command_that_keeps_its_cells(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    path = sweep_of(bench)
    with monkeypatch.context() as patch:
        signal_with_an_outcome(patch, nth=3)
        result = CliRunner().invoke(cli, ["run", str(path), "--no-supervised", "--overwrite"])
    assert result.exit_code == 130
    assert "mlx-bulk: stopped; the same command without --overwrite continues: " in result.stderr
    assert "sweep: 1 of 2 cells complete, 1 left; the same command without --overwrite continues -> " in result.stderr
    assert bench.command(path).code == 0


def test_a_signal_when_the_last_cell_is_done_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    real, runs = session.run_job, [0]

    def signalled(*arguments: Any) -> Any:
        summary = real(*arguments)
        runs[0] += 1
        if runs[0] == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return summary

    monkeypatch.setattr(session, "run_job", signalled)
    done = bench.command(sweep_of(bench))
    assert done.code == 0
    assert done.last_line.startswith("sweep: 2 of 2 cells complete -> ")


def test_an_interrupted_start_of_a_run_that_has_rows_does_not_say_that_it_starts_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        signal_with_an_outcome(patch, nth=2)
        assert bench.run(**ONE_BY_ONE).code == 130
    with monkeypatch.context() as patch:
        patch.setattr(loading, "fit", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        done = bench.run(**ONE_BY_ONE)
    assert done.code == 143
    assert done.last_line == "mlx-bulk: interrupted before the first step of this session; nothing was lost, the same command continues"


def test_a_volume_that_stays_full_costs_no_model_load(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def load(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda volume: Usage(100 << 20, 99 << 20, 1 << 20))
    monkeypatch.setattr(loading, "fit", load)
    done = bench.run()
    assert done.code == 6
    assert done.last_line.startswith(f"mlx-bulk: {bench.root}/run/results: the volume ")
    assert done.last_line.endswith(
        " has 1.0 MB free, needed are 8.4 MB in reserve, for what else the run writes. What was finished is safe: make room there, "
        "then continue with the same command (without --overwrite)."
    )


def test_overwrite_of_an_unfinished_run_tells_what_it_removes(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        signal_with_an_outcome(patch, nth=2)
        assert bench.run(**ONE_BY_ONE).code == 130
    said = f"mlx-bulk: {bench.root}/run: --overwrite removes a run that is not complete, with 0 committed rows and 1 open shards"
    assert said in bench.run("--overwrite").stderr.splitlines()
    assert "--overwrite removes" not in bench.run("--overwrite").stderr
