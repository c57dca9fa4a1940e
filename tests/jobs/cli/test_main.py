"""Tests the command line as users meet it: exit codes, messages that name the fix, and late imports."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx_bulk.__main__ as start
import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.kernels import backend

from ..support.bench import Bench, Record
from ..support.command_inputs import LOADING, THREE

INSTALLED = str(Path(sys.executable).parent / "mlx-bulk")


MODULE = (sys.executable, "-m", "mlx_bulk.jobs")


HEAVY = {"mlx.core", "mlx_lm", "transformers", "datasets", "pyarrow", "torch", "huggingface_hub"}


def test_ctrl_c_while_the_command_imports_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    class Interrupts:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == cli_module:
                raise KeyboardInterrupt

    def ends(code: int) -> None:
        raise SystemExit(code)

    cli_module = "mlx_bulk.jobs.cli.main"
    monkeypatch.delitem(sys.modules, cli_module)
    monkeypatch.setattr(sys, "meta_path", [Interrupts, *sys.meta_path])
    monkeypatch.setattr(os, "_exit", ends)
    with pytest.raises(SystemExit) as end:
        start.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "mlx-bulk: stopped before it began\n"


def test_quarantined_rows_are_counted_on_the_last_line(bench: Bench):
    done = bench.run(rows=THREE)
    assert done.code == 3
    assert done.last_line.startswith("complete: 3 of 3 rows, 1 quarantined in errors/; ")
    assert [record["row"] for record in done.records] == [0, 2]
    (error,) = done.errors
    assert (error["row"], error["key"], error["sample"], error["stage"]) == (1, "1", None, "template")
    assert error["message"].startswith("prompt.text: null or missing in this row: q.")
    assert error["message"].endswith("rows.jsonl, line 2)")
    assert json.loads(error["input"]) == {"q": None}
    again = bench.run(rows=THREE)
    assert (again.code, again.records, again.errors) == (3, done.records, done.errors)
    assert again.last_line.startswith("complete already: 3 of 3 rows, 1 quarantined")


def test_unreadable_lines_are_quarantined_as_they_stood(bench: Bench):
    path = bench.write_config()
    (bench.root / "rows.jsonl").write_text('{"q": "a"}\n{"q": \n[1]\n{"q": "d"}\n')
    done = bench.command(path)
    assert done.code == 3
    assert [record["row"] for record in done.records] == [0, 3]
    assert [(error["row"], error["stage"], error["input"]) for error in done.errors] == [(1, "read", '{"q": '), (2, "read", "[1]")]
    assert "line 2: not valid JSON" in done.errors[0]["message"]


def test_an_empty_dataset_is_complete_with_a_warning(bench: Bench):
    done = bench.run(rows=[])
    assert done.code == 0
    assert "rows.jsonl: the input has no rows; there is nothing to do" in done.stderr
    assert done.records == []
    assert (done.output / "summary.json").exists()
    assert bench.run(rows=[]).code == 0
    filled = bench.run(rows=THREE[:1])
    assert (filled.code, len(filled.records)) == (0, 1)
    assert "the run that was there had an input without rows; this one takes its place" in filled.stderr


def test_a_second_run_says_complete_and_does_nothing(bench: Bench):
    assert bench.run().code == 0
    parts = {path: path.stat().st_mtime_ns for path in (bench.root / "run").rglob("*.arrow") if path.parent.name == "results"}
    done = bench.run()
    assert done.code == 0
    assert done.last_line == f"complete already: 5 of 5 rows -> {bench.root}/run"
    assert not LOADING.search(done.stderr)
    assert parts == {path: path.stat().st_mtime_ns for path in parts}


def test_short_options_stand_for_three_paths(bench: Bench, model: Path):
    path = bench.write_config(model={"path": "/nowhere"}, data={"path": "/nowhere.jsonl"}, output={"path": str(bench.root / "unused")})
    rows = bench.write_rows([{"q": "x"}], "other.jsonl")
    done = bench.command(path, "--model", str(model), "--data", str(rows), "--output", str(bench.root / "here"), "--set", "sampling.n=2")
    assert done.code == 0
    assert len(done.records) == 2
    assert not (bench.root / "unused").exists()


@pytest.mark.parametrize("command", ["run", "plan", "eval"])
def test_a_setting_that_stands_by_itself_is_told_how_it_is_written(bench: Bench, command: str):
    path = str(bench.write_config())
    done = CliRunner().invoke(cli, [command, path, "data.split=test set", "more"])
    assert done.exit_code == 2
    assert "Error: data.split=test set stands by itself; a setting is written --set 'data.split=test set'\n" in done.stderr
    done = CliRunner().invoke(cli, [command, path, "more", "others"])
    assert "Error: one CONFIG is expected; found more others beside it\n" in done.stderr
    assert not (bench.root / "run").exists()


def test_an_option_and_a_setting_of_the_same_key_are_refused(bench: Bench):
    path = bench.write_config()
    said = CliRunner().invoke(cli, ["plan", str(path), "--limit", "2", "--set", "data.limit=3"])
    assert said.exit_code == 2
    assert "--limit and --set data.limit set the same key. Leave one of them out." in said.output


def test_quiet_says_nothing_and_errors_still_show(bench: Bench):
    assert bench.run("-q").stderr == ""
    failed = bench.run("-q", "--overwrite", data={"path": "/gone.jsonl"})
    assert failed.code == 5
    assert "/gone.jsonl does not exist" in failed.stderr


@pytest.mark.parametrize("level", ["WARNING", "Error", "info"])
def test_log_level_touches_our_logger_alone(bench: Bench, level: str):
    root, other = logging.getLogger(), logging.getLogger("transformers")
    before = root.level, list(root.handlers), other.level
    done = bench.run("--log-level", level)
    assert done.code == 0
    assert ("5 rows from" in done.stderr) == (level == "info")
    assert (root.level, list(root.handlers), other.level) == before


def test_the_last_line_says_how_much_was_computed_of_prompts_that_begin_alike(bench: Bench):
    done = bench.run(rows=[{"q": "word " * 60 + str(i)} for i in range(4)])
    session = json.loads((done.output / "summary.json").read_text())["session"]
    assert session["prefilled_tokens"] < session["prompt_tokens"] / 2
    assert f"; {session['prompt_tokens']:,} prompt ({session['prefilled_tokens']:,} computed) + " in done.last_line


def test_the_last_line_and_summary_agree(bench: Bench):
    done = bench.run()
    summary = json.loads((done.output / "summary.json").read_text())
    prompt, generated = summary["session"]["prompt_tokens"], summary["session"]["generated_tokens"]
    assert generated == sum(record["completion_tokens"] for record in done.records) == 30
    assert (summary["rows"], summary["of"], summary["records"], summary["errors"], summary["complete"]) == (5, 5, 5, 0, True)
    assert done.last_line.startswith(f"complete: 5 of 5 rows; {prompt} prompt + {generated} generated tokens in ")
    assert done.last_line.endswith(f"-> {done.output}")
    assert done.stdout == ""


def test_a_run_that_is_complete_keeps_its_summary(bench: Bench):
    before = (bench.run().output / "summary.json").read_bytes()
    assert (bench.run().output / "summary.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(bench: Bench, closed: str):
    assert bench.run().code == 0
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *MODULE, "status", str(bench.root / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_run_with_closed_streams_is_complete(bench: Bench):
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *MODULE, "run", str(bench.write_config())]
    assert subprocess.run(command, check=False).returncode == 0
    assert bench.run().last_line.startswith("complete already")


@pytest.mark.slow
@pytest.mark.parametrize("command", [(INSTALLED,), MODULE], ids=["script", "module"])
def test_the_command_as_a_process(bench: Bench, command: tuple[str, ...]):
    path = bench.write_config()
    done = subprocess.run([*command, "run", str(path), "-q"], capture_output=True, text=True, check=False, cwd=bench.root)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    summary = json.loads((bench.root / "run/summary.json").read_text())
    assert summary["rows"] == 5


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["--help"], 0, "Commands:", marks=pytest.mark.slow),
        (["run", "--help"], 0, "--overwrite"),
        pytest.param(["export", "--help"], 0, "--partial", marks=pytest.mark.slow),
        pytest.param(["status", "--help"], 0, "--json", marks=pytest.mark.slow),
        (["init", "sweep"], 0, "job: sweep"),
        pytest.param(["--version"], 0, ", version ", marks=pytest.mark.slow),
        pytest.param(["run", "typo.yaml"], 2, "no such file", marks=pytest.mark.slow),
        (["run", "wrong.yaml"], 2, "did you mean sampling.temperature?"),
    ],
)
def test_help_and_config_errors_import_nothing_heavy(tmp_path: Path, arguments: list[str], code: int, said: str):
    # What makes them slow is what they import; a clock would measure the machine.
    (tmp_path / "wrong.yaml").write_text("job: generate\nsampling: {temperatur: 1}\n")
    script = (
        "import json, sys\nfrom mlx_bulk.jobs.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    code = done.code or 0\n"
        f"json.dump([code, sorted({HEAVY!r} & sys.modules.keys())], sys.stdout)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.endswith(f"[{code}, []]"), done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_reasons_stand_above_the_last_line(bench: Bench):
    done = bench.run(rows=THREE)
    above, last = done.stderr.splitlines()[-2:]
    assert above.startswith("1 failed at template, the first in row 1: prompt.text: null or missing in this row: q.")
    assert last.startswith("complete: ")
    assert json.loads((done.output / "summary.json").read_text())["reasons"] == [above]
    assert bench.run(rows=THREE).stderr.splitlines()[-2] == above  # said again where nothing was left to do


@pytest.mark.parametrize("rows", [[{"q": None}], []])
def test_a_scoring_job_that_scores_nothing_counts_scored_tokens(bench: Bench, rows: list[Record]):
    done = bench.score(rows=rows, score={"text": "{{ q }}"})
    assert "; 0 scored tokens in " in done.last_line
    assert "generated" not in done.stderr


@pytest.mark.compiles
@pytest.mark.skipif(backend.device_name() != "cpu", reason="kernels are compiled for the CPU alone")
def test_a_run_without_a_compiler_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    assert "g++" not in bench.run().stderr
    monkeypatch.setenv("PATH", str(bench.root))
    assert bench.run(output={"path": str(bench.root / "other")}).stderr.count("no g++ is on the PATH") == 1
    calls = list[mx.array]()

    @mx.compile
    def noting(x: mx.array) -> mx.array:
        calls.append(x)
        return x + 1

    for _ in range(2):
        noting(mx.ones(1))
    assert len(calls) == 2  # mlx compiles no more: a function that it compiles is traced once
