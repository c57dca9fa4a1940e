"""``mlx-bulk plan``: its figures match those of the run, and it leaves no trace."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.core import shard_layout
from mlx_bulk.runner.estimate import survey
from mlx_bulk.runner.estimate.survey import sampled_windows, window_rows

from ...jobs.support.bench import ROWS, Bench

LONG = {"q": "word " * 600}


def plan(config: Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["plan", str(config), "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def text(config: Path, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["plan", str(config), *options], env={"COLUMNS": "100"})
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())  # where lines are broken does not count


def summary(bench: Bench) -> dict[str, Any]:
    return json.loads((bench.root / "run" / "summary.json").read_text())


def test_a_plan_is_what_the_run_then_counts(bench: Bench):
    rows = [{"q": "one two three " * (1 + i % 7)} for i in range(90)]
    job: dict[str, Any] = {"sampling": {"max_tokens": 5, "ignore_eos": True, "n": 2}, "batch": {"rows": 8, "tokens": 200}}
    found = plan(bench.write_config(rows, **job))
    assert not (bench.root / "run").exists()
    assert bench.run(rows=rows, **job).code == 0
    session = summary(bench)["session"]
    assert found["tokens"]["sum"] == session["prompt_tokens"]
    assert found["generated_tokens"] == {"most": session["generated_tokens"], "expected": None}
    assert found["padding_waste"] == session["padding_waste"] > 0
    assert (found["rows"], found["completions"]) == (90, 180)
    assert found["shared_tokens"] == found["tokens"]["sum"]  # of two samples one is prefilled


@pytest.mark.parametrize(
    "score",
    [{"text": "{{ q }}"}, {"choices": "choices", "label": "label"}, {"completion": " {{ a }}"}],
    ids=["text", "choices", "completion"],
)
def test_the_plan_of_a_scoring_job_is_what_the_run_then_counts(bench: Bench, score: dict[str, str]):
    rows = [
        {"q": "one two three " * (1 + i % 7), "a": "four " * (i % 3 + 1), "choices": [" yes", " no, never"], "label": 0} for i in range(40)
    ]
    prompt = {} if "text" in score else {"prompt": {"text": "{{ q }}"}}
    assert bench.score(rows=rows, score=score, batch={"rows": 8, "tokens": 200}, **prompt).code == 0
    found = plan(bench.root / "config.yaml", "--output", str(bench.root / "other"))
    session = summary(bench)["session"]
    assert found["scored_tokens"] == session["scored_tokens"]
    assert found["padding_waste"] == session["padding_waste"]
    assert found["generated_tokens"]["most"] == 0


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_plan_of_an_embedding_job_is_what_the_run_then_counts(bench: Bench, deterministic: bool):
    rows = [{"q": "one two three " * (1 + i % 8) + str(i % 40)} for i in range(60)]
    batch = {"rows": 12, "tokens": 200, "deterministic": deterministic}
    done = bench.score(rows=rows, job="embed", prompt={"text": "{{ q }}"}, embed={"pooling": "mean"}, batch=batch)
    assert done.code == 0, done.stderr
    config = bench.root / "config.yaml"
    found, session = plan(config, "--output", str(bench.root / "other")), summary(bench)["session"]
    assert (found["tokens"]["sum"], found["fed_tokens"]) == (session["prompt_tokens"], session["prefilled_tokens"])
    if not deterministic:  # a trial on the weights may show there that texts go one at a time
        assert found["padding_waste"] == session["padding_waste"]
    assert (found["texts"], found["completions"], found["generated_tokens"]["most"]) == (60, 0, 0)
    assert found["shared_tokens"] == found["tokens"]["sum"] - found["fed_tokens"]
    assert found["disk_bytes"] == pytest.approx(sum(f.stat().st_size for f in (done.output / "results").iterdir()), rel=0.02)
    assert 0 < found["kv_bytes"] < found["kv_bytes_room"]
    shown = text(config, "--output", str(bench.root / "other"), "--calibrate")
    assert f"60 texts: {found['fed_tokens']:,} tokens in {found['batches']} batches of rows of like length" in shown
    assert re.search(r"weights \+ up to [\d.]+ [kM]B arrays of a batch \(\d+ texts at the peak\)", shown)
    assert ("equal texts near each other are computed once" in shown) is not deterministic
    assert ("nothing: batch.deterministic computes each text for itself" in shown) is deterministic
    computed = "" if deterministic else f" ({session['prefilled_tokens']:,} computed)"
    assert f"; {session['prompt_tokens']:,} tokens{computed} in " in done.last_line


def test_rows_that_cannot_be_done_are_counted_with_examples(bench: Bench):
    config = bench.write_config([*ROWS, LONG, {"id": "no question"}, LONG])
    with (bench.root / "rows.jsonl").open("a") as file:
        file.write("{torn\n")
    found = {each["stage"]: each for each in plan(config)["problems"]}
    assert {stage: each["count"] for stage, each in found.items()} == {"too_long": 2, "template": 1, "read": 1}
    assert "rows.jsonl, line 6" in found["too_long"]["examples"][0]
    assert "rows.jsonl, line 9" in found["read"]["examples"][0]
    shown = text(config)
    assert "4 cannot be done and go to errors/" in shown
    assert bench.command(config).code == 3
    assert len(bench.command(config).errors) == 4


def test_rows_that_fill_the_context_are_shown(bench: Bench):
    shown = text(bench.write_config([{"q": "word " * 30}, *ROWS], sampling={"max_tokens": 500}))
    assert "fill the model's context" in shown


def test_the_output_folder_is_shown_and_left_unchanged(bench: Bench):
    rows = [{"q": f"question {i}"} for i in range(6)]
    config = bench.write_config(rows, data={"limit": 4}, batch={"rows_per_shard": 2})
    assert plan(config)["output"]["state"] == "new"
    assert bench.command(config).code == 0
    before = {path: path.stat().st_mtime_ns for path in (bench.root / "run").rglob("*")}
    assert plan(config)["output"] | {"path": ""} == {"path": "", "state": "complete", "rows": 4, "reasons": []}
    fewer = plan(config, "--limit", "2")
    assert (fewer["output"]["state"], fewer["rows_left"]) == ("complete", 0)
    more = plan(config, "--set", "data.limit=6")
    assert (more["output"]["state"], more["output"]["rows"], more["rows_left"]) == ("continues", 4, 2)
    other = plan(config, "--set", "sampling.max_tokens=7")["output"]
    assert other["state"] == "refused"
    assert other["reasons"] == ["sampling.max_tokens: the run has 6, the config now says 7"]
    assert before == {path: path.stat().st_mtime_ns for path in (bench.root / "run").rglob("*")}


def test_a_run_over_no_rows_leaves_the_folder_free(bench: Bench):
    assert bench.run(rows=[]).code == 0
    assert plan(bench.write_config([{"q": "a"}]))["output"]["state"] == "new"


def test_a_folder_of_something_else_is_shown(bench: Bench):
    (bench.root / "run").mkdir()
    (bench.root / "run" / "thesis.tex").write_text("mine")
    shown = text(bench.write_config())
    assert "a run of this config would be refused" in shown
    assert "thesis.tex" in shown
    (bench.root / "file").write_text("")
    assert plan(bench.write_config(), "--output", str(bench.root / "file"))["output"]["state"] == "refused"


def test_stdin_is_refused(bench: Bench):
    said = text(bench.write_config(), "--data", "-", code=2)
    assert said == "mlx-bulk: data.path: found '-' (stdin), which can be read only once; save the rows to a file, and plan with --data FILE"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--set", "sampling.max_tokns=3"), 2, "did you mean"),
        (("--model", "/nowhere"), 5, "no folder /nowhere"),
        (("--data", "/nowhere.jsonl"), 5, "does not exist"),
        (("--set", "prompt.text={{ question }}"), 5, "question"),
        (("--set", "batch.memory=0.0000001"), 6, "batch.memory"),
    ],
)
def test_what_stops_a_run_stops_the_plan(bench: Bench, options: tuple[str, ...], code: int, words: str):
    assert words in text(bench.write_config(), *options, code=code)


def test_an_empty_input_has_nothing_to_do(bench: Bench):
    assert "the input has no rows; a run has nothing to do" in text(bench.write_config([]))


def test_rows_that_are_all_bad_make_a_plan(bench: Bench):
    shown = text(bench.write_config([LONG, LONG]), code=3)
    assert "2 cannot be done" in shown


def test_a_trial_gives_time_and_lengths(bench: Bench):
    config = bench.write_config([{"q": f"question {i}"} for i in range(20)], sampling={"max_tokens": 4, "ignore_eos": True})
    found = plan(config, "--calibrate")
    assert found["generated_tokens"]["expected"] == found["generated_tokens"]["most"] == 80
    assert found["seconds"] > 0
    assert found["seconds_left"] == found["seconds"]
    assert found["tokens_per_second"] == pytest.approx((found["tokens"]["sum"] + 80) / found["seconds"])
    assert found["calibration"]["unfinished"] == 0
    assert not (bench.root / "run").exists()
    assert re.search(r"begun now it ends at 2\d{3}-\d\d-\d\d \d\d:\d\d [A-Z+-]", text(config, "--calibrate"))
    assert re.search(r"batches +1 prefill of", text(config))


def test_the_page_names_every_figure(bench: Bench):
    page = (Path(__file__).parents[3] / "docs" / "plan.md").read_text(encoding="utf-8")
    assert set(plan(bench.write_config())) <= set(re.findall(r"`(\w+)`", page.partition("## For machines")[2]))


def test_a_large_input_is_sampled_in_whole_windows(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    rows = [{"q": "one two three " * (1 + i % 5)} for i in range(400)]
    config = bench.write_config(rows, batch={"rows_per_shard": 10}, sampling={"ignore_eos": True, "max_tokens": 3})
    whole = plan(config)
    monkeypatch.setattr(shard_layout, "WINDOW_ROWS", 20)
    monkeypatch.setattr(survey, "SAMPLED_ROWS", 100)
    part = plan(config)
    assert (part["rows"], part["rows_read"]) == (400, 100)
    for name in ("sum", "mean", "max"):
        assert part["tokens"][name] == whole["tokens"][name]
    assert part["generated_tokens"]["most"] == 1_200
    assert part["disk_bytes"] == pytest.approx(whole["disk_bytes"], rel=0.05)
    assert "100 of them were read" in text(config)


@pytest.mark.parametrize(("rows", "window"), [(1_000_000, 4_096), (200_001, 4_096), (5_000_000, 250_000), (200_001, 4_097)])
def test_samples_are_spread_over_the_input(rows: int, window: int):
    spans = list(sampled_windows(rows, window))
    assert all(span.start % window == 0 and span.stop <= rows for span in spans)
    assert [a.stop <= b.start for a, b in pairwise(spans)] == [True] * (len(spans) - 1)
    assert 4_096 <= sum(map(len, spans)) <= 200_000
    assert spans[-1].stop > rows * 0.9 - window


def test_windows_are_whole_shards_or_with_pictures_parts(bench: Bench):
    from mlx_bulk.configs.load import load_config

    def rows(pictures: bool = False, **batch: Any) -> int:
        config = load_config(bench.write_config(batch=batch))
        assert config.job != "sweep"
        return window_rows(config, pictures)

    assert rows(rows_per_shard=1_000) == 4_000
    assert rows(rows_per_shard=9_000) == 9_000
    assert rows(pictures=True, rows_per_shard=100) == 500
    assert rows(pictures=True, rows_per_shard=1_000) == 512
    assert rows(pictures=True, rows_per_shard=1_000, deterministic=True) == 1_000
    assert rows(rows_per_shard=100, deterministic=True) == 100
    rollout: dict[str, Any] = {"job": "rollout", "sampling": {"n": 2, "temperature": 1.0}, "batch": {"rows_per_shard": 100}}
    for policy, window in (({}, 4_000), ({"watch": str(bench.root)}, 100)):
        config = load_config(bench.write_config(**rollout, policy=policy))
        assert config.job == "rollout"
        assert window_rows(config, False) == window


def test_a_sweep_has_a_line_a_cell_and_says_which_cells_fail(bench: Bench):
    base = json.loads(json.dumps({"job": "generate", "model": {"path": str(bench.model)}, "data": {"path": str(bench.write_rows(ROWS))}}))
    base |= {"prompt": {"text": "{{ q }}"}, "sampling": {"max_tokens": 3}}
    sweep = {"job": "sweep", "base": base, "matrix": {"sampling.max_tokens": [2, 3]}, "output": {"path": str(bench.root / "sweep")}}
    config = bench.root / "sweep.yaml"
    config.write_text(json.dumps(sweep))
    found = plan(config)
    assert [cell["plan"]["generated_tokens"]["most"] for cell in found["cells"]] == [10, 15]
    assert not (bench.root / "sweep").exists()
    sweep["include"] = [{"model.path": "/nowhere"}]
    config.write_text(json.dumps(sweep))
    shown = text(config, code=5)
    assert "no folder /nowhere" in shown
    assert re.search(r" 2 \S*tiny 5 5 0 ", shown)  # a long path is cut in front


def test_shared_prefixes_are_counted_once_as_in_the_run(bench: Bench):
    rows = [{"q": "Read this text with care, and then answer. " * (3 + i % 2) + "word " * (i % 7)} for i in range(60)]
    job: dict[str, Any] = {"sampling": {"max_tokens": 3, "ignore_eos": True}, "batch": {"rows": 8, "tokens": 200}}
    config = bench.write_config(rows, **job)
    found = plan(config)
    assert found["fed_tokens"] < found["tokens"]["sum"] / 4
    assert f"{found['tokens']['sum'] - len(rows) - found['fed_tokens']:,} prompt tokens are not fed again: rows begin alike" in text(config)
    assert bench.run(rows=rows, **job).code == 0
    assert summary(bench)["session"]["padding_waste"] == found["padding_waste"]
    unshared = plan(bench.write_config(rows, **{**job, "batch": {**job["batch"], "deterministic": True}}))
    assert unshared["fed_tokens"] == found["tokens"]["sum"] - len(rows)
