"""Tests ``mlx-bulk verify`` on real runs: text, exit codes, and that nothing changes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli

from ..support.bench import Bench, Record

ROWS: list[Record] = [{"q": "a"}, {"q": None}, {"q": "c"}, {"q": "word " * 200}, {"q": "e"}]
SHARDS: dict[str, Any] = {"batch": {"rows_per_shard": 2}}


def verify(run: Path, *options: str) -> Result:
    result = CliRunner().invoke(cli, ["verify", str(run), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def files(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_a_complete_run(bench: Bench):
    assert bench.run(sampling={"n": 3}).code == 0
    before = files(bench.root)
    result = verify(bench.root / "run")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout == (
        f"run      {bench.root}/run (generate)\n"
        "input    5 rows\n"
        "results  15 records\n"
        "errors   none\n"
        "open     nothing\n"
        f"parts    1 file, {(bench.root / 'run/results/part-00000000.arrow').stat().st_size:,} bytes, read in full: they are what was "
        "committed\n"
        "complete and sound: 5 rows, each once\n"
    )
    assert files(bench.root) == before


def test_a_run_with_quarantined_rows(bench: Bench):
    assert bench.run(rows=ROWS, **SHARDS).code == 3
    result = verify(bench.root / "run")
    assert result.exit_code == 3
    assert "errors   2: 1 template (RowError), 1 too_long (RowError)\n" in result.stdout
    assert result.stdout.endswith("complete and sound: 5 rows, each once, 2 records in errors/\n")


def test_scores(bench: Bench):
    assert bench.score(rows=ROWS, score={"text": "{{ q }}"}, **SHARDS).code == 3
    assert "complete and sound: 5 rows" in verify(bench.root / "run").stdout


def test_rows_with_samples_of_their_own(bench: Bench):
    rows: list[Record] = [{"q": "a", "many": 3}, {"q": "b", "many": 1}, {"q": "c", "many": None}]
    assert bench.run(rows=rows, sampling={"n": 2, "columns": {"n": "many"}}).code == 0
    assert "results  6 records\n" in verify(bench.root / "run").stdout


def test_from_another_folder(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(bench.root)
    assert bench.run(data={"path": "rows.jsonl"}, output={"path": "run"}).code == 0
    (bench.root / "elsewhere").mkdir()
    monkeypatch.chdir(bench.root / "elsewhere")
    assert verify(Path("../run")).exit_code == 0
    assert Path.cwd() == bench.root / "elsewhere"


def test_a_run_that_stopped(bench: Bench):
    assert bench.run(rows=ROWS, data={"limit": 3}, **SHARDS).code == 3
    (bench.root / "run/results/part-00000001.arrow").unlink()
    result = verify(bench.root / "run")
    assert result.exit_code == 5
    assert "open     1 row, in shard 1\n" in result.stdout
    assert (
        f"wrong: {bench.root}/run/results/part-00000001.arrow: is missing; run the same command again: it does shard 1 again\n"
        "not sound: 1 thing is wrong, 2 of 3 rows are done\n"
    ) in result.stdout


def test_an_input_that_is_gone(bench: Bench):
    assert bench.run().code == 0
    (bench.root / "rows.jsonl").unlink()
    result = verify(bench.root / "run")
    assert result.exit_code == 5
    assert "input    cannot be read; the run covers 5 rows\n" in result.stdout
    assert "wrong: data.path: " in result.stdout
    assert "put the input where it was; the results can be read without it\n" in result.stdout


def test_as_json(bench: Bench):
    assert bench.run(rows=ROWS, **SHARDS).code == 3
    result = verify(bench.root / "run", "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["errors"] == [
        {"stage": "template", "error": "RowError", "count": 1},
        {"stage": "too_long", "error": "RowError", "count": 1},
    ]
    assert (found["complete"], found["exit_code"], found["rows"], found["resolved"], found["problems"]) == (True, 3, 5, 5, [])
    (bench.root / "run/errors/part-00000000.arrow").write_bytes(b"")
    found = json.loads(verify(bench.root / "run", "--json").stdout)
    assert (found["complete"], found["exit_code"], found["open_shards"]) == (False, 5, [0])
    assert found["problems"][0].keys() == {"place", "what", "cure"}


def test_a_sweep_is_no_run(bench: Bench):
    (bench.root / "run").mkdir()
    (bench.root / "run/sweep.json").write_text("{}")
    result = verify(bench.root / "run")
    assert (result.exit_code, "is a sweep. Its cells are runs: verify the folders in it one by one." in result.stderr) == (5, True)


def test_a_folder_that_is_no_run(bench: Bench):
    result = verify(bench.root / "run")
    assert (result.exit_code, result.stdout) == (5, "")
    assert (
        result.stderr
        == f"mlx-bulk: {bench.root}/run: is not a run directory: there is no such folder; expected the output folder of mlx-bulk run\n"
    )


def test_a_file_is_no_run(bench: Bench):
    (bench.root / "job.yaml").write_text("job: generate")
    result = verify(bench.root / "job.yaml")
    assert (result.exit_code, result.stdout) == (5, "")
    assert (
        result.stderr
        == f"mlx-bulk: {bench.root}/job.yaml: is not a run directory: it is a file; expected the output folder of mlx-bulk run\n"
    )


def test_a_damaged_run_does_not_say_that_its_files_are_sound(bench: Bench):
    done = bench.run()
    for part in (done.output / "results").iterdir():
        part.unlink()
    text = CliRunner().invoke(cli, ["verify", str(done.output)]).stdout
    assert "parts    sound are 0 files, 0 bytes; what is wrong follows\nwrong: " in text
    assert "they are what was committed" not in text
