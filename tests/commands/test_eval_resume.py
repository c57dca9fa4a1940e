"""Tests ``mlx-bulk eval`` through interrupts and kills: it continues, computes nothing twice, and ends with the same figures."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.runner.core.outcomes import Failure, Outcome
from mlx_bulk.runner.scoring.scorer import Scorer

from ..jobs.support.eval_commands import TASKS, bulk, computed, eval_config, offline

pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:  # pyright: ignore[reportUnusedFunction]
    offline(monkeypatch, tmp_path_factory.getbasetemp())


def figures(folder: Path) -> dict[str, Any]:
    """All numbers of results.json, by task and metric; bootstrapped errors are drawn anew each time by lm-eval's own seeds."""
    results = json.loads((folder / "out/results.json").read_text())["results"]
    return {f"{task} {name}": value for task, values in results.items() for name, value in values.items() if isinstance(value, float)}


def samples(folder: Path) -> list[Any]:
    return [json.loads(line)["resps"] for line in (folder / "out/samples_sums.jsonl").read_text().splitlines()]


def test_an_interrupted_evaluation_goes_on_with_the_same_command(tmp_path: Path, model: Path):
    whole = eval_config(tmp_path / "whole", model, log_samples=True)
    with computed() as all_rows:
        assert bulk("eval", whole).exit_code == 0
    assert sorted(all_rows) == list(range(len(all_rows)))
    config = eval_config(tmp_path / "broken", model, log_samples=True)
    seen: list[int] = []
    for stop_at in (3, 11, 9):  # among the choices, and later ones
        with computed(stop_at) as rows:
            result = bulk("eval", config)
        assert result.exit_code == 130
        assert "stopped; the same command continues -> " in result.stderr
        assert not (tmp_path / "broken/out/results.json").exists()
        seen += rows
    with computed() as rows:
        result = bulk("eval", config)
    assert result.exit_code == 0, result.stderr
    assert f"complete: {len(all_rows)} requests, {len(seen)} from before -> " in result.stderr
    assert sorted(seen + rows) == sorted(all_rows)  # nothing lost, nothing twice
    # float32: which rows share a batch changes the order of sums
    assert figures(tmp_path / "broken") == pytest.approx(figures(tmp_path / "whole"), rel=1e-5)
    assert samples(tmp_path / "broken") == samples(tmp_path / "whole")


def test_a_complete_evaluation_loads_no_model_again(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    config = eval_config(tmp_path, model, limit=2)
    first = bulk("eval", config)
    before = json.loads((tmp_path / "out/results.json").read_text())
    monkeypatch.setattr("mlx_bulk.jobs.harness.model.load_models", None)
    again = bulk("eval", config, "--set", "log_samples=true")
    assert again.exit_code == 0, again.stderr
    assert again.stdout == first.stdout
    after = json.loads((tmp_path / "out/results.json").read_text())
    assert (after["results"], after["config"]) == (before["results"], before["config"])
    assert (tmp_path / "out/samples_sums.jsonl").is_file()


def test_tasks_may_be_added_at_the_end(tmp_path: Path, model: Path):
    with computed() as first:
        assert bulk("eval", eval_config(tmp_path, model, tasks=["questions"], limit=3)).exit_code == 0
    with computed() as second:
        assert bulk("eval", eval_config(tmp_path, model, tasks=["questions", "plays"], limit=3)).exit_code == 0
    assert sorted(first + second) == list(range(len(first) + 3))
    assert set(json.loads((tmp_path / "out/results.json").read_text())["results"]) == {"questions", "plays"}


def test_another_evaluation_is_refused_until_it_may_overwrite(tmp_path: Path, model: Path):
    config = eval_config(tmp_path, model, tasks=["questions"], limit=3)
    assert bulk("eval", config).exit_code == 0
    before = (tmp_path / "out/results.json").read_bytes()
    lines = {
        "num_fewshot=1": "num_fewshot: the run has null, the config now says 1",
        "limit=2": "limit: the run has 3, the config now says 2",
        "model.add_bos_token=false": "model.add_bos_token: the run has null, the config now says false",
        "tasks=[plays, questions]": "tasks: source 1 was questions (requests of lm-eval, ",
    }
    for changed, line in lines.items():
        refused = bulk("eval", config, "--set", changed)
        assert refused.exit_code == 4, refused.stderr
        assert line in refused.stderr
    assert (tmp_path / "out/results.json").read_bytes() == before
    assert bulk("eval", config, "--set", "limit=2", "--overwrite").exit_code == 0
    assert json.loads((tmp_path / "out/results.json").read_text())["n-samples"]["questions"]["effective"] == 2


def test_a_task_whose_documents_changed_is_refused(tmp_path: Path, model: Path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    rows = (TASKS / "plays.jsonl").read_text().splitlines()
    (tasks / "p.yaml").write_text((TASKS / "plays.yaml").read_text().replace("plays.jsonl", str(tasks / "p.jsonl")))
    (tasks / "p.jsonl").write_text("\n".join(rows))
    config = eval_config(tmp_path, model, tasks=["plays"], include_path=str(tasks))
    assert bulk("eval", config).exit_code == 0
    (tasks / "p.jsonl").write_text("\n".join([*rows[:2], json.dumps({"text": "Another play."}), *rows[3:]]))
    refused = bulk("eval", config)
    assert refused.exit_code == 4
    assert "tasks: source 1 was plays (requests of lm-eval, 7 rows, " in refused.stderr


def test_adopting_never_gives_an_answer_to_another_document(tmp_path: Path, model: Path):
    config = eval_config(tmp_path, model, tasks=["questions", "plays"], limit=2)
    with computed() as rows:
        assert bulk("eval", config).exit_code == 0
    before = figures(tmp_path)
    refused = bulk("eval", config, "--set", "limit=3", "--adopt", "limit", "--adopt", "tasks")  # it moves the second task's rows
    assert refused.exit_code == 4
    assert "holds an answer to document 0 of plays, where the tasks now have document 2 of questions" in refused.stderr
    with computed() as again:
        assert bulk("eval", config).exit_code == 0  # it is still the run that it was
        assert bulk("eval", config, "--set", "seeds.sampling=5", "--adopt", "seeds.sampling").exit_code == 0
    assert (again, figures(tmp_path)) == ([], before)
    assert len(rows) > 2


def test_a_damaged_part_is_computed_again(tmp_path: Path, model: Path):
    config = eval_config(tmp_path, model, tasks=["questions"], limit=4)
    assert bulk("eval", config).exit_code == 0
    before, part = figures(tmp_path), tmp_path / "out/results/part-00000000.arrow"
    part.write_bytes(part.read_bytes()[:-100])
    with computed() as rows:
        assert bulk("eval", config).exit_code == 0
    assert sorted(rows) == list(range(8))  # the shard's, no others
    assert figures(tmp_path) == pytest.approx(before, rel=1e-5)
    assert bulk("verify", tmp_path / "out").exit_code == 0
    refused = bulk("verify", tmp_path / "out", "--rescore")
    told = "is an evaluation; only records of generate, rollout, embed and classify can be computed again. Verify it without --rescore; "
    assert told + "mlx-bulk eval CONFIG --overwrite asks the model anew." in refused.stderr


def test_a_start_that_is_refused_leaves_no_folder(tmp_path: Path, model: Path):
    assert bulk("eval", eval_config(tmp_path, model, tasks=["nothing"])).exit_code == 2
    assert bulk("eval", eval_config(tmp_path, tmp_path / "none")).exit_code != 0
    assert not (tmp_path / "out").exists()


def test_what_is_drawn_does_not_depend_on_where_a_run_was_interrupted(tmp_path: Path, model: Path):
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    (tasks / "s.yaml").write_text((TASKS / "sums.yaml").read_text() + "repeats: 3\n")
    drawn = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 6, "until": []}
    settings: dict[str, Any] = {"tasks": ["sums"], "include_path": str(tasks), "gen_kwargs": drawn, "log_samples": True, "limit": 3}
    assert bulk("eval", eval_config(tmp_path / "whole", model, **settings)).exit_code == 0
    config = eval_config(tmp_path / "broken", model, **settings)
    with computed(4) as first:
        assert bulk("eval", config).exit_code == 130
    with computed() as second:
        assert bulk("eval", config).exit_code == 0
    assert sorted(first + second) == list(range(9))
    assert samples(tmp_path / "broken") == samples(tmp_path / "whole")
    assert len({text for texts in samples(tmp_path / "whole") for each in texts for text in each}) > 5  # repeats differ


def test_a_request_without_an_answer_is_kept_until_errors_are_retried(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    config = eval_config(tmp_path, model, tasks=["plays"], limit=4)
    run = Scorer.run

    def failing(self: Scorer, *arguments: Any) -> Iterator[Outcome]:
        for outcome in run(self, *arguments):
            yield Failure(1, None, 0, "score", "NaN", "its logits are not numbers", "") if outcome.row == 1 else outcome

    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "run", failing)
        failed = bulk("eval", config)
    assert failed.exit_code == 0
    assert "complete: 4 requests, 1 without an answer (errors/) -> " in failed.stderr
    assert "1 score (NaN), first row 1 (key plays/1): its logits are not numbers" in bulk("status", tmp_path / "out").stdout
    with computed() as rows:
        assert bulk("eval", config).exit_code == 0
    assert rows == []
    with computed() as rows:
        again = bulk("eval", config, "--retry-errors")
    assert rows == [1]
    assert "complete: 4 requests, 3 from before -> " in again.stderr
    assert all(value == value for value in figures(tmp_path).values())


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [5, 21])
def test_a_killed_evaluation_goes_on(tmp_path: Path, model: Path, kill_at: int):
    config = eval_config(tmp_path, model)
    script = f"""
import datasets.config, functools, lm_eval.tasks, os, signal, sys
from mlx_bulk.kernels import backend
backend.prepare()
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.evals.run import EvalRun

datasets.config.HF_DATASETS_CACHE = {str(tmp_path / "datasets")!r}
lm_eval.tasks.TaskManager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
add, added = EvalRun.add, []
def noted(self, place, outcome, answer):
    add(self, place, outcome, answer)
    added.append(self._call[place])
    if len(added) == {kill_at}:  # once the answers so far are durable
        print(*added, flush=True)
        self.writer.flush(lambda: os.kill(os.getpid(), signal.SIGKILL))
        signal.pause()
EvalRun.add = noted
cli(["eval", {str(config)!r}])
"""
    died = subprocess.run([sys.executable, "-c", script], cwd=TASKS, capture_output=True, text=True, check=False, env={**os.environ})
    assert died.returncode == -signal.SIGKILL, died.stderr
    before = [int(row) for row in died.stdout.split()]
    assert len(before) == kill_at
    with computed() as rows:
        result = bulk("eval", config)
    assert result.exit_code == 0, result.stderr
    assert sorted(before + rows) == list(range(len(before + rows)))
    assert bulk("eval", eval_config(tmp_path / "whole", model)).exit_code == 0
    assert figures(tmp_path) == pytest.approx(figures(tmp_path / "whole"), rel=1e-5)
