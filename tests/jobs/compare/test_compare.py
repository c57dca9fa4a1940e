"""Tests ``mlx-bulk compare`` on real runs: differences of configs, figures and documents, as text and as JSON."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk.configs.load import load_config
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.jobs.compare.compare import compare_runs
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.core.host_process import HostProcess
from mlx_bulk.runner.models.model_pool import ModelPool
from mlx_bulk.runner.pipeline.model_work import ModelWork
from mlx_bulk.runner.pipeline.session import run_job as run_job
from mlx_bulk.runner.runs.run_dir import Start

from ...checkpoints import LLAMA, write_checkpoint
from ...runner.support.sessions import flip
from ..support.bench import ROWS, Bench, Done, Record, table_of

QUESTIONS: list[Record] = [
    {"id": f"q{i}", "q": q, "a": ["yes", "no", "perhaps so"], "y": i % 3} for i, q in enumerate(["Is it?", "Was it?", "Will it be?", "A"])
]


def compare(*arguments: str | Path) -> Done:
    """The command; ``code``, ``stdout`` and ``stderr`` of what it did."""
    result = CliRunner().invoke(cli, ["compare", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return Done(result.exit_code, result.stdout, result.stderr, Path(), table_of(Path("/nowhere")), [])


def scored(bench: Bench, name: str, rows: list[Record] | None = None, **sections: Any) -> Path:
    """A complete scoring run of ``ROWS`` in a folder of that name."""
    config = yaml.safe_load(bench.write_config(rows).read_text(encoding="utf-8"))
    del config["prompt"], config["sampling"]
    config |= {"job": "score", "score": {"text": "{{ q }}"}}
    for section, given in sections.items():
        config[section] = {**config[section], **given} if section in ("model", "data") else given
    path = bench.root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    done = bench.command(path, "--output", str(bench.root / name))
    assert done.code in (0, 3), done.stderr
    return done.output


@pytest.fixture
def other(bench: Bench) -> Path:
    """A model with another number of layers, and so other weights."""
    return write_checkpoint(bench.root / "other", LLAMA | {"num_hidden_layers": 1})


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A complete run of the standard job."""
    return Bench(tmp_path_factory.mktemp("generated"), model).run().output


def test_two_models_on_the_same_documents(bench: Bench, model: Path, other: Path):
    a, b = scored(bench, "a"), scored(bench, "b", model={"path": str(other)})
    found = compare_runs(a, b, 3)
    assert found.notes == []
    assert set(found.settings) == {"model.path", "model.weights (contents)"}
    assert found.settings["model.path"] == (str(model), str(other))
    assert found.paired is not None
    figures, records = found.paired.figures, [table_of(run / "results").to_pylist() for run in (a, b)]
    sums = [np.array([record["sum_logprob"] for record in run]) for run in records]
    counts = np.array([record["scored_tokens"] for record in records[0]])
    assert figures["nll_difference"] == pytest.approx((sums[0].sum() - sums[1].sum()) / counts.sum(), rel=1e-9)
    # What is reported of the pair is what is reported of each.
    ppl_a, ppl_b = found.statistics["token_perplexity"]
    assert figures["perplexity_ratio"] == pytest.approx(ppl_b / ppl_a, rel=1e-9)
    assert found.statistics["scored_tokens"] == (int(counts.sum()), int(counts.sum()))
    apart = np.abs(sums[1] / counts - sums[0] / counts)
    assert found.paired.most[0]["difference"] == pytest.approx(-(sums[1] / counts - sums[0] / counts)[found.paired.most[0]["row"]])
    assert [each["row"] for each in found.paired.most] == list(np.argsort(-apart)[:3])
    shown = compare(a, b, "--top", "2")
    assert (shown.code, shown.stderr) == (0, "")
    assert "  perplexity, B / A " in shown.stdout
    assert "  NLL (nats per token), B − A; below 0: B is better " in shown.stdout
    assert "5 documents in both, joined by row" in shown.stdout
    assert len(shown.stdout.partition("The documents that differ most, by NLL (nats per token):\n")[2].splitlines()) == 3


def test_a_run_without_bos_is_compared_over_the_tokens_that_both_score(bench: Bench):
    a, b = scored(bench, "a"), scored(bench, "b", score={"text": "{{ q }}", "prefix": "none"})
    found = compare_runs(a, b, 10)
    assert found.notes == ["the runs may score different tokens (score.prefix: bos, none); those that both score are compared"]
    assert found.paired is not None
    figures = found.paired.figures
    assert (figures["unit"], figures["left_out_unlike_tokens"], figures["tokens_only_b"]) == ("token", 0, 0)
    tokens = [sum(record["scored_tokens"] for record in table_of(run / "results").to_pylist()) for run in (a, b)]
    assert figures["tokens_only_a"] == tokens[0] - tokens[1] - 1  # the text of one token has none that both score
    assert figures["left_out_nothing_scored"] == 1
    assert f"tokens that A alone scores are not compared: {figures['tokens_only_a']}" in compare(a, b).stdout


@pytest.mark.slow
def test_the_limit_of_an_extended_run_is_the_longer_one(bench: Bench):
    a = scored(bench, "a", data={"limit": 2})
    assert bench.command(bench.root / "a.yaml", "--output", str(a), "--set", "data.limit=3").code == 0
    assert compare_runs(a, scored(bench, "b", data={"limit": 4}), 1).settings == {"data.limit": (3, 4)}
    assert compare_runs(a, scored(bench, "c", data={"limit": 3}), 1).settings == {}


@pytest.mark.slow
def test_a_reference_that_one_run_has_is_one_line(bench: Bench, other: Path):
    a, b = scored(bench, "a"), scored(bench, "b", score={"text": "{{ q }}", "reference": {"path": str(other)}})
    assert compare_runs(a, b, 1).settings == {"score.reference": (None, str(other))}
    assert len(re.findall(r"^score.reference +none +/", compare(a, b).stdout, re.MULTILINE)) == 1
    c = scored(bench, "c", score={"text": "{{ q }}", "reference": "demo"})
    assert {"score.reference.path", "score.reference.model.weights (contents)"} <= compare_runs(b, c, 1).settings.keys()


def test_the_same_documents_in_another_order_are_joined_by_key(bench: Bench):
    a = scored(bench, "a", data={"key": "id"})
    b = scored(bench, "b", [*ROWS[:0:-1], {"id": "z", "q": "New."}], data={"key": "id"})
    found = compare_runs(a, b, 10)
    assert found.notes == ["the inputs' contents differ: keys are taken to name the same document"]
    assert found.paired is not None
    assert (found.paired.joined_by, found.paired.matched, found.paired.only_a, found.paired.only_b) == ("key", 4, 1, 1)
    # The same documents in batches of another order: float32 sums in another order.
    assert found.paired.figures["nll_difference"] == pytest.approx(0.0, abs=1e-4)
    assert "Note: the inputs' contents differ: keys are taken to name the same document." in compare(a, b).stdout


def test_rows_of_other_inputs_are_joined_with_a_warning(bench: Bench):
    found = compare_runs(scored(bench, "a"), scored(bench, "b", ROWS[1:]), 10)
    assert found.notes == ["the inputs' contents differ: rows are taken to be the same document by their position"]
    assert found.paired is not None
    assert found.paired.matched == 4


def test_choices_side_by_side(bench: Bench, other: Path):
    sections: dict[str, Any] = {"score": {"choices": "a", "label": "y"}, "prompt": {"text": "{{ q }}"}}
    a, b = scored(bench, "a", QUESTIONS, **sections), scored(bench, "b", QUESTIONS, **sections, model={"path": str(other)})
    found = compare_runs(a, b, 10)
    assert found.paired is not None
    figures = found.paired.figures
    right = [[record["correct"] for record in table_of(run / "results").to_pylist()] for run in (a, b)]
    assert figures["acc_difference"] == pytest.approx(np.mean(right[1]) - np.mean(right[0]))
    assert (figures["acc_a"], figures["acc_b"]) == found.statistics["acc"]
    table = [figures[name] for name in ("both_right", "only_a_right", "only_b_right", "neither_right")]
    assert table == [sum(pair == wanted for pair in zip(*right, strict=True)) for wanted in ((1, 1), (1, 0), (0, 1), (0, 0))]
    shown = compare(a, b).stdout
    assert all(f"  {name} right " in shown for name in ("both", "only A", "only B", "neither"))


def test_completions_side_by_side(bench: Bench):
    warm: dict[str, Any] = {"sampling": {"temperature": 1.0, "n": 2}}
    a = bench.run("--output", str(bench.root / "a"), **warm)
    b = bench.run("--output", str(bench.root / "b"), sampling={"temperature": 1.0, "n": 2, "seed": 1})
    found = compare_runs(a.output, b.output, 10)
    assert found.settings == {"sampling.seed": (0, 1)}
    assert found.paired is not None
    same = sum(x["completion_ids"] == y["completion_ids"] for x, y in zip(a.records, b.records, strict=True))
    assert (found.paired.figures["completions"], found.paired.figures["same"]) == (10, same)
    shown = compare(a.output, a.output).stdout
    assert "Settings, weights and tokenizers are the same." in shown
    assert "10 completions in both, joined by row" in shown
    assert "differ most" not in shown


def test_a_run_that_is_not_complete_is_compared_as_far_as_it_is(bench: Bench):
    whole = bench.run("--output", str(bench.root / "a"), batch={"rows_per_shard": 2, "rows": 1})
    asked = iter([False] * 24 + [True] * 1000)
    config: Any = load_config(bench.root / "config.yaml", [f"output.path={bench.root / 'b'}"])
    summary = run_job(config, KINDS["generate"], Start(), HostProcess(lambda: next(asked)), "nothing", ModelWork(ModelPool()))
    assert 2 <= summary.rows < 5
    found = compare_runs(whole.output, bench.root / "b", 10)
    committed = len(table_of(bench.root / "b/results"))
    assert found.notes == [f"B is not complete: {committed} of 5 rows are committed; what both have is compared"]
    assert found.statistics["records"] == (5, committed)  # of what is committed: a stopped run has no stats.arrow
    assert found.paired is not None
    assert (found.paired.matched, found.paired.only_a, found.paired.figures["same"]) == (committed, 5 - committed, committed)


def test_damaged_figures_are_computed_again(bench: Bench):
    a, b = bench.run().output, scored(bench, "b")
    stored = compare_runs(a, b, 10).statistics
    for run in (a, b):
        flip(run / "stats.arrow")
    found = compare_runs(a, b, 10).statistics
    assert {name: values for name, values in found.items() if values != (None, None)}.items() <= stored.items()
    assert found["completion_perplexity"][0] is not None
    assert found["token_perplexity"][1] is not None


def test_runs_of_unlike_jobs_share_no_documents(bench: Bench):
    generated = bench.run()
    found = compare_runs(generated.output, scored(bench, "b"), 10)
    assert found.paired is None
    assert found.notes == ["A is a run of generate, B of text: their documents cannot be held against each other"]
    assert found.settings["job"] == ("generate", "score")
    shown = compare(generated.output, bench.root / "b")
    assert shown.code == 0
    assert shown.stdout.splitlines()[-1] == f"Note: {found.notes[0]}."


@pytest.mark.slow
def test_rollouts_side_by_side(bench: Bench):
    """Statistics are a row each, whatever nests them in the file; rewards of the same samples have their difference."""
    rows = [{"q": row["q"], "answer": "4"} for row in ROWS]
    source = bench.root / "mine.py"
    source.write_text("def odd(completion_ids, **_):\n    return [float(ids[0] % 2) for ids in completion_ids]\n")
    rewards = [{"fn": "last_number", "args": {"column": "answer"}}, {"fn": f"{source}:odd"}]
    runs = [
        bench.run(
            "--output",
            str(bench.root / name),
            job="rollout",
            rows=rows,
            rewards=rewards,
            sampling={"max_tokens": 6, "temperature": 1.0, "n": 4, "seed": seed},
        )
        for seed, name in enumerate("ab")
    ]
    a, b = (run.output for run in runs)
    found = compare_runs(a, b, 3)
    assert not [name for name, values in found.statistics.items() if any(isinstance(value, dict | list) for value in values)]
    means = [np.mean([record["rewards"]["odd"] for record in run.records]) for run in runs]
    assert found.statistics["rewards.odd.mean"] == tuple(pytest.approx(mean) for mean in means)
    assert found.statistics["rewards.odd.pass@1"] == tuple(pytest.approx(mean) for mean in means)
    assert found.statistics["reward_stderr"][0] is not None
    assert found.paired is not None
    overall = [np.mean([record["reward"] for record in run.records]) for run in runs]
    assert found.paired.figures["reward_difference"] == pytest.approx(overall[1] - overall[0])
    shown = compare(a, b).stdout
    assert "{" not in shown.partition("statistics ")[2]
    assert re.search(r"^  reward, B − A +-?\d\.\d+ ± ", shown, re.MULTILINE)


def test_json_holds_everything_and_no_number_that_json_lacks(bench: Bench, other: Path):
    a, b = scored(bench, "a", [{"q": ""}, {"q": "x"}]), scored(bench, "b", [{"q": ""}, {"q": "x"}], model={"path": str(other)})
    done = compare(a, b, "--json")
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(found) == {"a", "b", "notes", "settings", "statistics", "paired"}
    assert (found["a"]["path"], found["a"]["kind"], found["a"]["complete"]) == (str(a), "text", True)
    assert found["paired"]["figures"]["documents"] == 1
    assert math.isfinite(found["paired"]["most"][0]["difference"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", "there is no such folder"),
        ("empty", "it holds no run.json"),
        ("file", "it is a file"),
        ("damaged", "its run.json cannot be read (it is damaged"),
    ],
)
def test_a_folder_that_is_no_run_gives_one_line(bench: Bench, generated: Path, name: str, reason: str):
    run = generated
    (bench.root / "empty").mkdir()
    (bench.root / "file").write_text("x")
    (bench.root / "damaged").mkdir()
    (bench.root / "damaged/run.json").write_text((run / "run.json").read_text().replace('"seed": 0', '"seed": 1'))
    done = compare(run, bench.root / name)
    assert (done.code, done.stdout, len(done.stderr.splitlines())) == (5, "", 1)
    assert f"{bench.root / name}: is not a run directory: {reason}" in done.stderr


def test_a_sweeps_folder_names_its_runs(bench: Bench):
    run = bench.run("--output", str(bench.root / "sweep/cell")).output
    assert compare(run.parent, run).stderr.endswith("expected the output folder of mlx-bulk run; runs in it are cell\n")


def test_wrong_usage(bench: Bench):
    assert compare("only-one").code == 2
    assert compare("a", "b", "--top", "-1").code == 2


@pytest.mark.parametrize(
    ("job", "settings", "key", "values"),
    [
        ("embed", {"pooling": "mean"}, "pooling", ["mean", "cls"]),
        pytest.param("classify", {"true_token": "e"}, "false_token", [None, "a"], marks=pytest.mark.slow),
    ],
)
def test_runs_of_pooling_models_are_compared_without_documents(
    bench: Bench, job: str, settings: dict[str, str], key: str, values: list[str | None]
):
    a, b = (bench.root / name for name in "ab")
    for folder, value in zip((a, b), values, strict=True):
        given = {job: {**settings, key: value}, "output": {"path": str(folder)}}
        done = bench.score(rows=ROWS, job=job, prompt={"text": "{{ q }}"}, **given)
        assert done.code == 0, done.stderr
    done = compare(a, b)
    assert (done.code, done.stderr) == (0, "")
    assert f"both are runs of {job}: settings and statistics are compared, and no documents" in done.stdout
    assert re.search(rf"{job}\.{key} +{values[0] or '–'} +{values[1]}", done.stdout)
    other = compare(a, scored(bench, "c", ROWS[1:])).stdout
    assert f"A is a run of {job}, B of text" in other
    assert "Note: the inputs' contents differ.\n" in other  # no documents are joined: it is not said how they would be
