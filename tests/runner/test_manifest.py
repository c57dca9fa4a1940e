"""Whose folder it is: locks, strangers, identity, overwriting."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.runner.durable import read_lines
from mlx_bulk.runner.errors import DriftError, RunDirError
from mlx_bulk.runner.manifest import RunDir

INPUTS: dict[str, Any] = {"limit": None, "sources": [{"path": "a", "bytes": 8, "sha256": "ab", "rows": 4, "appendable": False}]}
RUN: dict[str, Any] = {"identity": {"sampling.temperature": 1.0, "sampling.seed": 0}, "inputs": INPUTS, "config": {"any": "thing"}}


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(item.relative_to(path)): item.read_bytes() if item.is_file() else None for item in path.rglob("*")}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run directory with one of everything."""
    path = tmp_path / "run"
    with RunDir.open(path) as run:
        run.bind(RUN)
        run.session({"host": "here"})
        run.add_metrics({"rows": 1})
        run.write_summary({"rows": 1})
        for file in (
            run.inputs,
            run.commits,
            run.stats,
            run.root / "report.html",
            run.results_part(0),
            run.errors_part(0),
            run.journal_of(1),
        ):
            file.write_bytes(b"")
        (run.root / "stdin.jsonl").write_bytes(b"{}\n")
        (run.results / "part-00000001.arrow.orphan").write_bytes(b"")
        (run.results / ".part-00000001.arrow.tmp").write_bytes(b"")
    return path


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path):
    with RunDir.open(tmp_path / "deep" / "run") as run:
        run.bind(RUN)
        assert json.loads(run.run.read_bytes()) == {"schema_version": 1, **RUN}
        assert run.recover(0, 4, pa.schema([])).committed == frozenset()


def test_the_same_run_binds_again_and_again(finished: Path):
    before = (finished / "run.json").read_bytes()
    with RunDir.open(finished) as run:
        run.bind({**RUN, "config": {"not": "compared"}})
    assert (finished / "run.json").read_bytes() == before


def test_drift_is_refused_with_a_line_a_difference_and_the_ways_out(finished: Path):
    before = (finished / "run.json").read_bytes()
    with RunDir.open(finished) as run, pytest.raises(DriftError) as caught:
        run.bind({"identity": {"sampling.temperature": 0.7, "sampling.seed": 0}, "inputs": {**INPUTS, "limit": 3}})
    assert str(caught.value) == (
        f"{finished}: this run was started with something else:\n"
        "  sampling.temperature: the run has 1.0, the config now says 0.7\n"
        "  data.limit: the run covers 4 rows, the config now says 3\n"
        "Go back to what the run has, choose another --output, or start over with --overwrite (this removes the run's results)."
    )
    assert caught.value.exit_code == 4
    assert (finished / "run.json").read_bytes() == before


def test_an_extension_is_stored_and_cannot_be_taken_back(finished: Path):
    more = {**INPUTS, "sources": [*INPUTS["sources"], {"path": "b", "bytes": 2, "sha256": "cd", "rows": 1, "appendable": False}]}
    with RunDir.open(finished) as run:
        run.bind({**RUN, "inputs": more})
        assert json.loads(run.run.read_bytes())["inputs"] == more
        with pytest.raises(DriftError, match="source 2, b, is gone"):
            run.bind(RUN)


def test_another_schema_version_is_refused(finished: Path):
    (finished / "run.json").write_text(json.dumps({"schema_version": 99, **RUN}))
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match="schema version 99"):
        run.bind(RUN)


def test_results_without_run_json_are_not_adopted(finished: Path):
    (finished / "run.json").unlink()
    with RunDir.open(finished) as run, pytest.raises(RunDirError, match=r"no run\.json"):
        run.bind(RUN)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "run.json", ".hidden", "results/part-00000000.arrow", "commits.jsonl"])
def test_a_folder_that_is_no_run_is_refused_and_untouched(tmp_path: Path, name: str, overwrite: bool):
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"years": 4}')
    before = tree(tmp_path)
    with pytest.raises(RunDirError, match=r"is not an mlx-bulk run, it holds .*Choose another --output"):
        RunDir.open(tmp_path / "mine", overwrite=overwrite)
    assert tree(tmp_path) == before


def test_a_file_in_place_of_the_folder_is_one_clear_line(tmp_path: Path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirError, match="is a file; expected a folder"):
        RunDir.open(tmp_path / "run")


def test_a_start_cut_short_before_run_json_can_be_continued(tmp_path: Path):
    with RunDir.open(tmp_path / "run") as run:
        run.inputs.write_text("{}")
    with RunDir.open(tmp_path / "run") as run:
        run.bind(RUN)
        assert run.run.exists()


def test_overwrite_removes_what_is_ours_and_nothing_else(finished: Path):
    for name in ("notes.txt", "results/notes.txt"):
        (finished / name).write_text("mine")
    with RunDir.open(finished, overwrite=True) as run:
        assert set(tree(finished)) == {".lock", "results", "errors", "journal", "notes.txt", "results/notes.txt"}
        run.bind({**RUN, "identity": {}})


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path):
    code = (
        "import sys, pathlib; from mlx_bulk.runner.manifest import RunDir; "
        "RunDir.open(pathlib.Path(sys.argv[1])); print('held', flush=True); input()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(RunDirError, match=rf"process {child.pid} on \S+ \(since .*is working here"):
            RunDir.open(tmp_path / "run", overwrite=True)
    finally:
        child.kill()
        child.communicate()
    RunDir.open(tmp_path / "run").close()


def test_sessions_metrics_and_summary(finished: Path):
    with (finished / "sessions.jsonl").open("ab") as file:
        file.write(b'{"torn')
    with RunDir.open(finished) as run:
        run.session_ended({"exit": 0})
        first, last = read_lines(run.sessions)
        assert (first["event"], first["host"], last["event"], last["exit"]) == ("start", "here", "end", 0)
        assert read_lines(run.metrics)[0]["rows"] == 1
        assert json.loads(run.summary.read_bytes()) == {"rows": 1}
