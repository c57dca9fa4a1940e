"""Tests failures in a sweep: a failed cell stops no other, and a stopped sweep continues."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.jobs.sweep import sweep
from mlx_bulk.jobs.sweep.results_table import closing_table
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.files.folder_lock import lock
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline import session
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.runs.run_dir import RunDir, Start

from ..jobs.support.bench import ROWS, Bench
from ..jobs.support.sweep_runs import base_of, opened, run, table, written


def test_a_failed_cell_stops_no_other_and_is_tried_again(bench: Bench):
    matrix = {"data.path": [str(bench.root / "late.jsonl"), str(bench.root / "rows.jsonl")]}
    done = run(bench, matrix=matrix)
    assert done.code == 5
    assert done.last_line == f"sweep: 1 of 2 cells complete, 1 failed; mend what failed, then the same command goes on -> {bench.root}/out"
    assert "[1] data.path: " in done.stderr
    assert "late.jsonl does not exist" in done.stderr.splitlines()[-2]
    failed, complete = table(bench).to_pylist()
    assert (failed["state"], failed["exit_code"], failed["rows"], complete["state"], complete["rows"]) == ("failed", 5, None, "complete", 5)
    assert "late.jsonl does not exist" in failed["error"]
    bench.write_rows(ROWS[:2], "late.jsonl")
    assert run(bench, matrix=matrix).code == 0
    assert table(bench).column("rows").to_pylist() == [2, 5]


def test_a_cell_whose_base_changed_is_that_cells_failure_alone(bench: Bench):
    assert run(bench, matrix={"data.limit": [2]}).code == 0
    changed = base_of(bench, sampling={"max_tokens": 7})
    done = run(bench, base=changed, matrix={"data.limit": [2, 3]})
    assert done.code == 4
    assert "sampling.max_tokens: the run has 6, the config now says 7" in done.stderr
    drifted, fresh = table(bench).to_pylist()
    # What the folder's old statistics say is of another config.
    assert (drifted["state"], drifted["exit_code"], drifted["completion_perplexity"]) == ("failed", 4, None)
    assert (fresh["state"], fresh["rows"]) == ("complete", 3)
    # Failures of several kinds have no one code.
    missing = {"data.path": str(bench.root / "gone.jsonl"), "data.limit": 1}
    assert run(bench, base=changed, matrix={"data.limit": [2, 3]}, include=[missing]).code == 5


def test_any_exception_fails_its_own_cell(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    real = session.run_job

    def broken(config: Any, *rest: Any) -> Any:
        if config.data.limit == 1:
            raise RuntimeError("a library's fault")
        return real(config, *rest)

    monkeypatch.setattr(session, "run_job", broken)
    done = run(bench, matrix={"data.limit": [1, 2]})
    assert done.code == 5
    assert "[1] RuntimeError: a library's fault (exit code 5)" in done.stderr
    assert table(bench).column("state").to_pylist() == ["failed", "complete"]


def test_quarantined_rows_are_counted(bench: Bench):
    done = run(bench, base=base_of(bench, [{"q": "a"}, {"q": None}, {"q": "c"}]), matrix={"data.limit": [1, 3]})
    assert done.code == 3
    assert done.last_line == f"sweep: 2 of 2 cells complete, 1 row quarantined -> {bench.root}/out"
    assert table(bench).column("quarantined").to_pylist() == [0, 1]


def test_nothing_starts_where_a_cell_is_no_job(bench: Bench):
    done = run(bench, matrix={"data.limit": [1, 0]})
    assert done.code == 2
    assert 'the cell {"data.limit": 0}: data.limit: found 0; expected a whole number of at least 1, or null' in done.stderr
    done = run(bench, matrix={"prompt.text": ["{{ q }}", "{{ q"]})
    assert done.code == 2
    assert "the cell prompt.text={{ q: prompt.text, line 1: the template cannot be parsed" in done.stderr
    assert not (bench.root / "out").exists()


def test_a_folder_that_is_no_sweep_stays_untouched(bench: Bench):
    (bench.root / "out").mkdir()
    (bench.root / "out/thesis.txt").write_text("all of it")
    done = run(bench, matrix={"data.limit": [1]})
    assert done.code == 5
    assert "out: is not an mlx-bulk sweep, it holds thesis.txt. Choose another --output, or an empty folder." in done.stderr
    assert [path.name for path in (bench.root / "out").iterdir()] == ["thesis.txt"]


def test_runs_and_sweeps_do_not_share_a_folder(bench: Bench):
    assert run(bench, matrix={"data.limit": [1]}).code == 0
    assert "is not an mlx-bulk run, it holds" in bench.run("--output", str(bench.root / "out")).stderr
    assert bench.run("--output", str(bench.root / "run")).code == 0
    done = run(bench, "--output", str(bench.root / "run"), matrix={"data.limit": [1]})
    assert (done.code, "is not an mlx-bulk sweep, it holds" in done.stderr) == (5, True)


def test_two_processes_do_not_sweep_in_one_folder(bench: Bench):
    (bench.root / "out").mkdir()
    descriptor = lock(bench.root / "out", "mlx-bulk sweep")
    try:
        done = run(bench, matrix={"data.limit": [1]})
    finally:
        os.close(descriptor)
    assert done.code == 5
    assert f"process {os.getpid()} on " in done.stderr


def test_a_stop_leaves_the_rest_for_the_same_command(bench: Bench):
    path = written(bench, base_of(bench, batch={"rows": 1}), matrix={"sampling.max_tokens": [2, 3, 4]})
    cells = opened(path)
    asked = 0

    def stopped() -> bool:  # in the middle of the second cell
        nonlocal asked
        asked += (bench.root / "out" / cells[1].name).exists()
        return asked > 3

    ended = sweep.run_sweep(
        cells, KINDS, bench.root / "out", Start(), HostProcess(stopped), "nothing", lambda ended: None, ModelWork(ModelPool())
    )
    assert [each.state for each in ended] == ["complete", "stopped", "waiting"]
    assert sweep.closing_line(ended, Path("out"), "this") == "sweep: 1 of 3 cells complete, 2 left; this continues -> out"
    assert sweep.sweep_exit_code(ended) is None
    shown = closing_table(ended).splitlines()
    assert [line.split()[0] for line in shown] == ["sampling.max_tokens", "2", "3", "4"]
    assert "stopped at " in shown[2]
    assert "not begun" in shown[3]
    assert bench.command(path).code == 0
    assert table(bench).column("completion_tokens").to_pylist() == [10, 15, 20]


def test_sigint_ends_the_sweep_with_its_code(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    real = session.run_job

    def interrupted(config: Any, kind: Any, start: Any, stopped: Any, show: Any, models: Any) -> Any:
        summary = real(config, kind, start, stopped, show, models)
        os.kill(os.getpid(), signal.SIGINT)
        return summary

    monkeypatch.setattr(session, "run_job", interrupted)
    path = written(bench, base_of(bench), matrix={"data.limit": [1, 2, 3]})
    result = CliRunner().invoke(cli, ["run", str(path), "--no-supervised"])
    assert result.exit_code == 130
    assert "sweep: 1 of 3 cells complete, 2 left; the same command continues" in result.stderr
    monkeypatch.undo()
    assert bench.command(path).code == 0


def test_paths_that_are_missing_are_told_before_the_first_cell(bench: Bench, model: Path):
    gone = str(bench.root / "gone")
    done = run(bench, matrix={"model.path": [gone, str(model)], "data.path": [f"{gone}.jsonl", str(bench.root / "rows.jsonl")]})
    assert done.stderr.splitlines()[:2] == [
        f"mlx-bulk: model.path: {gone} does not exist; 2 of 4 cells will fail",
        f"mlx-bulk: data.path: {gone}.jsonl does not exist; 2 of 4 cells will fail",
    ]
    assert done.code == 5
    assert table(bench).column("state").to_pylist().count("complete") == 1


@pytest.mark.slow
def test_a_stopped_overwrite_of_a_sweep_adopts_no_old_run(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    path = written(bench, base_of(bench), matrix={"data.limit": [1, 2, 3]})
    assert bench.command(path).code == 0
    cells = [bench.root / "out" / cell.name for cell in opened(path)]
    for cell in cells:  # something by which the old runs are known
        (cell / "metrics.jsonl").write_text("")
    real = session.run_job

    def interrupted(*arguments: Any) -> Any:
        summary = real(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return summary

    with monkeypatch.context() as patch:
        patch.setattr(session, "run_job", interrupted)
        assert CliRunner().invoke(cli, ["run", str(path), "--no-supervised", "--overwrite"]).exit_code == 130
    assert [(cell / ".overwrite").exists() for cell in cells] == [False, True, True]
    done = bench.command(path)
    assert done.code == 0
    assert done.stderr.count("holds an older run, which an earlier --overwrite was to remove; it goes now") == 2
    assert [(cell / ".overwrite").exists() for cell in cells] == [False] * 3
    assert all((cell / "metrics.jsonl").stat().st_size for cell in cells)
    assert bench.command(path).stderr.count("it goes now") == 0


def test_a_sweep_is_not_overwritten_where_a_process_works_in_one_of_its_runs(bench: Bench):
    path = written(bench, base_of(bench), matrix={"data.limit": [1, 2]})
    assert bench.command(path).code == 0
    first, second = [bench.root / "out" / cell.name for cell in opened(path)]
    with RunDir.open(second):
        done = bench.command(path, "--overwrite")
    assert (done.code, f"{second}: process " in done.last_line) == (5, True)
    assert not (first / ".overwrite").exists()


@pytest.mark.parametrize(
    "typo",
    ["base.model.path=/nope/typo", *(pytest.param(each, marks=pytest.mark.slow) for each in ("base.data.path=/nope/typo.jsonl", "adopt"))],
)
def test_an_overwriting_sweep_that_cannot_start_leaves_its_old_runs_to_the_plain_command(bench: Bench, typo: str):
    path = written(bench, base_of(bench), matrix={"data.limit": [1, 2]})
    assert bench.command(path).code == 0
    parts = {part: part.stat().st_mtime_ns for part in (bench.root / "out").rglob("part-*.arrow")}
    wrong = ("--adopt", "no.such.key") if typo == "adopt" else ("--set", typo)
    done = bench.command(path, "--overwrite", *wrong)
    assert (done.code != 0, done.stderr.count("cannot start, so its old run stays: ")) == (True, 2)
    assert not list((bench.root / "out").rglob(".overwrite"))
    done = bench.command(path)
    assert (done.code, done.stderr.count("complete already")) == (0, 2)
    assert parts == {part: part.stat().st_mtime_ns for part in (bench.root / "out").rglob("part-*.arrow")}


def test_one_cell_that_cannot_start_over_keeps_its_old_run_alone(bench: Bench, model: Path):
    other = shutil.copytree(model, bench.root / "other")
    path = written(bench, base_of(bench), matrix={"model.path": [str(model), str(other)]})
    assert bench.command(path).code == 0
    shutil.rmtree(other)
    done = bench.command(path, "--overwrite")
    assert (done.code != 0, done.stderr.count("complete already")) == (True, 0)
    shutil.copytree(model, other)
    assert bench.command(path).stderr.count("complete already") == 2
