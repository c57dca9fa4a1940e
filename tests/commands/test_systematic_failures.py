"""First rows that all fail alike stop a run before its model has work; a setting goes on. A plan of bad rows alone says so."""

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.checks import engine_setup
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.pipeline import model_work
from mlx_bulk.runner.pipeline.systematic_failure import systematic_failure

from ..jobs.support.bench import Bench, Record

TEXTS: list[Record] = [{"q": "Which?", "a": "not a list"} for _ in range(60)]
CHOICES: Record = {"prompt": {"text": "{{ q }}"}, "score": {"choices": "a"}}


def test_choices_in_a_text_column_stop_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_work, "load_models", lambda *_: pytest.fail("the model was loaded"))
    done = bench.score(rows=TEXTS, **CHOICES)
    assert done.code == 5
    assert done.last_line.startswith("mlx-bulk: the first 60 rows all failed at template, and nothing was run: score.choices: ")
    assert done.last_line.endswith("then run the same command; on_error: quarantine_all sets such rows aside and goes on")
    assert (done.errors, done.records) == ([], [])


def test_rows_that_a_loaded_model_has_no_memory_for_stop_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_setup, "kv_bytes", lambda *_, **__: 10)  # pyright: ignore
    rows: list[Record] = [{"q": "Which?"} for _ in range(20)]
    done = bench.run(rows=rows)
    assert done.code == 5
    assert done.last_line.startswith("mlx-bulk: the first 20 rows all failed at too_long, and nothing was run: ")
    assert "or raise batch.memory" in done.last_line
    assert (done.errors, done.records) == ([], [])
    assert bench.run("--set", "on_error=quarantine_all", rows=rows).code == 3


def test_who_wants_to_goes_on(bench: Bench):
    assert bench.score(rows=TEXTS, **CHOICES).code == 5
    done = bench.score("--set", "on_error=quarantine_all", rows=TEXTS, **CHOICES)
    assert (done.code, len(done.errors)) == (3, 60)


def test_the_mended_command_starts_where_nothing_was_done(bench: Bench):
    assert bench.score(rows=TEXTS, **CHOICES).code == 5
    done = bench.score(rows=[row | {"a": ["yes", "no"]} for row in TEXTS], **CHOICES)
    assert (done.code, len(done.records)) == (0, 60)


@pytest.mark.parametrize(
    "rows",
    [
        TEXTS[:9],  # too few to tell
        [*TEXTS, {"q": "Which?", "a": ["yes", "no"]}],  # one of the first can be done
    ],
)
def test_rows_that_are_few_or_not_all_are_set_aside(bench: Bench, rows: list[Record]):
    assert bench.score(rows=rows, **CHOICES).code in (0, 3)


def test_failures_of_two_kinds_are_not_systematic():
    failures = [Failure(row, None, None, "read" if row == 50 else "template", "RowError", "no", "") for row in range(60)]
    assert systematic_failure(failures, 60) is None
    assert systematic_failure(failures[:50], 50) is failures[0]
    assert systematic_failure(failures[1:40], 60) is None


def test_later_rows_that_all_fail_stop_nothing(bench: Bench):
    good: list[Record] = [{"q": "Which?", "a": ["yes", "no"]}]
    data = {"path": str(bench.root / "rows.jsonl"), "keep": "none"}
    assert bench.score(rows=good, data=data, **CHOICES).code == 0
    done = bench.score(rows=good + TEXTS, data=data, **CHOICES)
    assert (done.code, len(done.errors)) == (3, 60)


@pytest.mark.parametrize(("rows", "code"), [(TEXTS, 3), (TEXTS[:2], 3), ([*TEXTS, {"q": "Which?", "a": ["yes", "no"]}], 0)])
def test_a_plan_of_bad_rows_alone_exits_with_3(bench: Bench, rows: list[Record], code: int):
    config = bench.write_config(rows, job="score", sampling=None, **CHOICES)
    config.write_text(config.read_text().replace("sampling: null\n", ""))
    result = CliRunner().invoke(cli, ["plan", str(config)], env={"COLUMNS": "300"})
    assert result.exit_code == code, result.output
    assert ("a run stops before the model has work" in result.stdout) == (rows == TEXTS)
