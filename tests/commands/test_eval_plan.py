"""``mlx-bulk plan`` of an evaluation: what it would have to do, what is done, and that it leaves nothing behind."""

import json
from pathlib import Path

import pytest

from ..jobs.support.eval_commands import bulk, computed, eval_config, offline

pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:  # pyright: ignore[reportUnusedFunction]
    offline(monkeypatch, tmp_path_factory.getbasetemp())


def test_a_plan_counts_what_the_run_then_does(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    config = eval_config(tmp_path, model, limit=4)
    with monkeypatch.context() as patch:
        patch.setattr("mlx_bulk.jobs.harness.model.load_models", None)  # no weights are read
        text = bulk("plan", config)
        plan = json.loads(bulk("plan", config, "--json").stdout)
    assert text.exit_code == 0, text.stderr
    assert not (tmp_path / "out").exists()
    assert f"output    {tmp_path / 'out'}: nothing is done there yet" in text.stdout
    assert "time      not known without a trial" in text.stdout
    assert [(task["task"], task["kind"], task["documents"]) for task in plan["tasks"]] == [
        ("questions", "loglikelihood", 4),
        ("plays", "loglikelihood_rolling", 4),
        ("sums", "generate_until", 4),
    ]
    assert plan["tasks"][2]["generated"] == 4 * 4  # max_gen_toks
    with computed() as rows:
        assert bulk("eval", config).exit_code == 0
    assert plan["requests"] == len(rows)
    status = json.loads(bulk("status", tmp_path / "out", "--json").stdout)
    assert sum(task["scored"] for task in plan["tasks"]) == status["scored_tokens"]
    assert status["generated_tokens"] <= 16


def test_a_plan_says_what_is_done_and_what_would_be_refused(tmp_path: Path, model: Path):
    config = eval_config(tmp_path, model, limit=2)
    with computed(3) as rows:
        assert bulk("eval", config).exit_code == 130
    plan = json.loads(bulk("plan", config, "--json").stdout)
    assert (plan["done"], plan["complete"], plan["seconds_left"]) == (len(rows), False, None)
    assert f"3 of {plan['requests']} requests have their answers, a run continues with the {plan['requests'] - 3} left" in (
        bulk("plan", config).stdout
    )
    refused = bulk("plan", config, "--set", "num_fewshot=1").stdout
    assert "a run of this config would be refused:" in refused
    assert "num_fewshot: the run has null, the config now says 1" in refused
    assert bulk("eval", config).exit_code == 0
    assert "complete already; the figures alone would be computed again" in bulk("plan", config, "--calibrate").stdout


def test_a_trial_gives_a_time_and_keeps_no_answer(tmp_path: Path, model: Path):
    config = eval_config(tmp_path, model, limit=2)
    plan = json.loads(bulk("plan", config, "--json", "--calibrate").stdout)
    assert plan["seconds_left"] > 0
    assert plan["tried"] == plan["requests"]
    assert not (tmp_path / "out").exists()


def test_an_unknown_task_stops_a_plan_as_it_stops_a_run(tmp_path: Path, model: Path):
    refused = bulk("plan", eval_config(tmp_path, model, tasks=["questons"]))
    assert refused.exit_code == 2
    assert refused.stderr == "mlx-bulk: tasks: no task, group, tag or file questons; did you mean questions?\n"
