"""Tests ``mlx-bulk eval``: config, files, messages."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from mlx_bulk.configs.load import load_eval
from mlx_bulk.jobs.cli.main import cli

# What every run directory has, and results.json.
RUN_FILES = {
    *(".lock", "run.json", "commits.jsonl", "sessions.jsonl", "metrics.jsonl", "summary.json", "stats.arrow"),
    *("results", "errors", "journal", "results.json"),
}
TASKS = Path(__file__).parents[1] / "support" / "tasks"

oracle = pytest.mark.oracle


@pytest.fixture
def _offline_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(TASKS)  # the tasks' data files are relative to it
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("lm_eval.tasks.TaskManager", _own_tasks())


def _own_tasks() -> Any:
    """lm-eval's task manager without the 14,000 tasks that it comes with, which take seconds to read."""
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    return functools.partial(TaskManager, include_defaults=False)


def config(tmp_path: Path, checkpoint: Path | str = "demo", **settings: Any) -> Path:
    written = {
        "job": "eval",
        "model": {"path": str(checkpoint)},
        "tasks": ["questions"],
        "include_path": str(TASKS),
        "output": {"path": str(tmp_path / "out")},
    }
    path = tmp_path / "eval.yaml"
    path.write_text(yaml.safe_dump({**written, **settings}))
    return path


def evaluated(path: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["eval", str(path), *options])


# ------------------------------------------------------------------------------------------------------------- what it says


def test_a_config_of_the_other_command_is_sent_there(tmp_path: Path, model: Path):
    path = config(tmp_path, model)
    result = CliRunner().invoke(cli, ["run", str(path), "--no-supervised"])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"job: found eval, which mlx-bulk run does not run; use mlx-bulk eval {path}\n")
    path.write_text("job: generate\n")
    result = evaluated(path)
    assert result.exit_code == 2
    assert 'job: found "generate"; expected eval, which mlx-bulk eval runs' in result.stderr


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"task": ["x"]}, "task: no such key; did you mean tasks?"),
        ({"model": {"path": "demo", "max_lenght": 4}}, "model.max_lenght: no such key; did you mean model.max_length?"),
        (
            {"model": {"path": "demo", "enable_thinking": True}},
            "model.think_end_token: found null; expected a token, since enable_thinking",
        ),
        ({"limit": 0}, "limit: found 0; expected a number of documents, a share of them below 1, or null"),
        ({"tasks": []}, "tasks: found []; expected a task's name"),
    ],
)
def test_settings_that_are_wrong_are_named_before_anything_is_loaded(tmp_path: Path, settings: dict[str, Any], line: str):
    result = evaluated(config(tmp_path, **settings))
    assert result.exit_code == 2
    assert line in result.stderr


def test_options_are_short_for_paths(tmp_path: Path):
    loaded = load_eval(config(tmp_path), ["limit=0.5", "tasks=sums"], {"model.path": "here", "output.path": "there"})
    assert (loaded.model.path, loaded.output.path, loaded.limit, loaded.tasks) == ("here", "there", 0.5, ["sums"])


def test_the_config_in_the_documentation_is_one(tmp_path: Path):
    documented = re.findall(r"```yaml\n(.*?)```", (Path(__file__).parents[3] / "docs" / "lm-eval.md").read_text(), re.DOTALL)
    (tmp_path / "eval.yaml").write_text(documented[0])
    assert load_eval(tmp_path / "eval.yaml").tasks == ["arc_easy", "mmlu_*", "my_task"]


def test_without_lm_eval_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    result = evaluated(config(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.endswith("mlx-bulk eval needs lm-evaluation-harness: pip install 'mlx-bulk[eval]'\n")


def test_the_folder_of_a_run_is_left_alone(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.json").write_text("{}")
    result = evaluated(config(tmp_path))
    assert result.exit_code == 5
    assert "out holds a run of mlx-bulk run; choose another folder" in result.stderr


def test_a_folder_of_tasks_that_is_missing_is_named(tmp_path: Path):
    result = evaluated(config(tmp_path, include_path=[str(TASKS), str(tmp_path / "gone")]))
    assert result.exit_code == 2
    assert result.stderr == f"mlx-bulk: include_path: found no folder {tmp_path}/gone; expected a folder with task files\n"


@oracle
@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"max_gen_tokens": 3}, "gen_kwargs.max_gen_tokens: mlx-bulk does not serve it; did you mean max_gen_toks?"),
        ({"num_beams": 4}, "gen_kwargs.num_beams: found 4; expected 1, since mlx-bulk has no beam search"),
        ({"do_sample": True, "temperature": 0}, "gen_kwargs.temperature: found 0; expected a number above 0, since do_sample is true"),
        ({"max_gen_toks": "many"}, "gen_kwargs: invalid literal for int() with base 10: 'many'; found {"),
        ({"max_gen_toks": 0}, "max_gen_toks: found 0; expected at least 1, and less than max_length"),
    ],
)
@pytest.mark.usefixtures("_offline_tasks")
def test_wrong_gen_kwargs_are_found_before_the_model_is_loaded(tmp_path: Path, settings: dict[str, Any], line: str):
    result = evaluated(config(tmp_path, "/nowhere", tasks=["sums"], gen_kwargs=settings))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"mlx-bulk: {line}")


@oracle
@pytest.mark.parametrize(
    "settings", [{"do_sample": True}, {"temperature": 0.5}, {"until": ["\n"], "max_length": 64}, {"max_new_tokens": 9}, {}]
)
def test_gen_kwargs_that_a_task_may_complete_are_taken(settings: dict[str, Any]):
    from mlx_bulk.jobs.harness.requests import check_settings

    given = dict(settings)
    check_settings(settings)  # raises for settings that no task can complete
    assert settings == given


@oracle
@pytest.mark.usefixtures("_offline_tasks")
def test_outside_of_a_repository_git_does_not_complain(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    path = config(tmp_path, model, limit=1)
    result = evaluated(path)
    assert result.exit_code == 0, result.stderr
    assert "fatal" not in capfd.readouterr().err
    assert json.loads((tmp_path / "out/results.json").read_text())["git_hash"] is None


@oracle
@pytest.mark.usefixtures("_offline_tasks")
def test_an_unknown_task_is_named_with_the_nearest(tmp_path: Path, model: Path):
    result = evaluated(config(tmp_path, model, tasks=["questons"]))
    assert result.exit_code == 2
    assert result.stderr == "mlx-bulk: tasks: no task, group, tag or file questons; did you mean questions?\n"


# ------------------------------------------------------------------------------------------------------------- what it does


@oracle
@pytest.mark.usefixtures("_offline_tasks")
def test_tables_go_to_stdout_and_results_to_the_folder(tmp_path: Path, model: Path):
    more = {"num_fewshot": 1, "limit": 3, "log_samples": True, "batch": {"rows": 2}, "gen_kwargs": {"max_gen_toks": 4}}
    path = config(tmp_path, model, tasks=["questions", "pl*", "sums"], **more)
    result = evaluated(path)
    assert result.exit_code == 0, result.stderr
    header, table = result.stdout.split("\n", 1)
    assert header == (
        f"mlx-bulk ({{'pretrained': '{model}', 'batch_size': 2}}), gen_kwargs: ({{'max_gen_toks': 4}}), "
        "limit: 3, num_fewshot: 1, batch_size: 2"
    )
    assert table.startswith("|  Tasks  |")
    assert "|questions|" in result.stdout
    out = tmp_path / "out"
    assert {file.name for file in out.iterdir()} == {*RUN_FILES, *(f"samples_{task}.jsonl" for task in ("plays", "questions", "sums"))}
    results = json.loads((out / "results.json").read_text())
    assert "samples" not in results
    assert results["config"]["model_args"] == {"pretrained": str(model), "batch_size": 2}
    assert results["configs"]["sums"]["generation_kwargs"]["max_gen_toks"] == 4
    assert results["n-samples"]["plays"] == {"original": 7, "effective": 3}
    assert results["config"]["mlx_bulk"]["batch"]["rows"] == 2
    samples = [json.loads(line) for line in (out / "samples_questions.jsonl").read_text().splitlines()]
    right = [sample["acc"] for sample in samples]
    assert results["results"]["questions"]["acc,none"] == pytest.approx(sum(right) / 3)
    (out / "notes.txt").write_text("mine")
    assert evaluated(path, "-q", "--set", "log_samples=false").exit_code == 0  # the same again, over what is there
    assert {file.name for file in out.iterdir()} == {*RUN_FILES, "notes.txt"}


@oracle
@pytest.mark.usefixtures("_offline_tasks")
def test_a_failure_inside_of_lm_eval_is_one_line(tmp_path: Path, model: Path):
    broken = tmp_path / "tasks"
    broken.mkdir()
    (broken / "t.yaml").write_text(
        (TASKS / "plays.yaml").read_text().replace("plays.jsonl", "nowhere.jsonl").replace("task: plays", "task: t")
    )
    result = evaluated(config(tmp_path, model, tasks=["t"], include_path=str(broken)))
    assert result.exit_code == 5
    assert result.stderr.splitlines()[-1].startswith("mlx-bulk: lm-eval: FileNotFoundError: ")


@pytest.mark.slow
@oracle
def test_lm_eval_s_own_command_line_runs_the_model(tmp_path: Path, model: Path):
    options = ["run", "--model", "mlx-bulk", "--model_args", f"pretrained={model}", "--tasks", str(TASKS / "sums.yaml"), "--limit", "2"]
    # As `python -m mlx_bulk.jobs.harness` does it, but for the tasks that lm-eval comes with.
    module = "runpy.run_module('mlx_bulk.jobs.harness.__main__', run_name='__main__', alter_sys=True)"
    tasks = "lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)"
    code = f"import functools, runpy, sys, lm_eval.tasks; {tasks}; sys.argv[1:] = {[*options, '--batch_size', 'auto']}; {module}"
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "datasets"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=TASKS, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mlx-bulk ({'pretrained': " in done.stdout
    assert "exact_match" in done.stdout
