"""Tests ``mlx-bulk status`` on runs of the real command: what continues them, what waits for removal, and their results."""

import json
import shlex

from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.runs.run_dir import RunDir

from ..jobs.support.bench import Bench, Record

ROWS: list[Record] = [{"q": "a"}, {"q": "b"}, {"q": None}]
FAILING = ("--set", "on_error=fail", "--set", "batch.rows_per_shard=2")


def shown(bench: Bench) -> list[str]:
    result = CliRunner().invoke(cli, ["status", str(bench.root / "run")], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def as_json(bench: Bench) -> Record:
    return json.loads(CliRunner().invoke(cli, ["status", str(bench.root / "run"), "--json"]).stdout)


def test_the_command_that_it_prints_continues_the_run(bench: Bench):
    first = bench.run(*FAILING, "--overwrite", "--set", "sampling.stop=['it''s; $HOME']", rows=ROWS)
    assert first.code == 5
    (line,) = (line for line in shown(bench) if line.startswith("continue"))
    words = shlex.split(line.removeprefix("continue"))
    assert words[:2] == ["mlx-bulk", "run"]
    assert "--overwrite" not in words
    assert not any("CONFIG" in line for line in shown(bench))
    # By the very words, with the row that failed set aside this time.
    again = CliRunner().invoke(cli, [*words[1:], "--set", "on_error=quarantine"])
    assert again.exit_code == 3, again.output
    assert not any(line.startswith("continue") for line in shown(bench))


def test_an_adopted_change_or_a_retry_is_not_repeated(bench: Bench):
    assert bench.run(rows=ROWS[:2]).code == 0
    assert bench.run(*FAILING[:2], "--set", "sampling.seed=1", "--adopt=sampling.seed", "--retry-errors", rows=ROWS).code == 5
    assert bench.run(*FAILING[:2], "--set", "sampling.seed=2", "--adopt", "sampling.seed", rows=ROWS).code == 5
    config = str(bench.root / "config.yaml")
    command = shlex.join(["mlx-bulk", "run", config, "--no-supervised", "--set", "on_error=fail", "--set", "sampling.seed=2"])
    assert f"continue  {command}" in shown(bench)


def test_a_run_that_is_still_to_be_removed_is_called_so(bench: Bench):
    assert bench.run(rows=ROWS[:2]).code == 0
    with RunDir.open(bench.root / "run") as run:
        run.doom()
    assert "note      what lies here is an older run, which --overwrite is to remove; the next start does that" in shown(bench)


def test_a_run_that_is_extended_and_stopped_is_not_complete(bench: Bench):
    """Its log still has the closing line of the shorter input."""
    assert bench.run(rows=ROWS[:2]).code == 0
    assert bench.run(*FAILING[:2], rows=ROWS).code == 5
    assert any(line.startswith("state     ended by an error") for line in shown(bench))
    exported = CliRunner().invoke(cli, ["export", str(bench.root / "run"), "--format", "jsonl", "--to", str(bench.root / "out.jsonl")])
    assert (exported.exit_code, "is not complete: 2 of 3 rows are committed" in exported.stderr) == (2, True)


def test_a_start_that_is_killed_at_once_leaves_a_run_that_has_not_started(bench: Bench):
    RunDir.open(bench.root / "run").close()  # what SIGKILL leaves before the input is read
    lines = shown(bench)
    assert "state     not begun: no start got as far as the first row" in lines
    assert any("refused, or broken off, before its first row" in line for line in lines)
    assert lines[-1] == "continue  the command that started it"
    assert as_json(bench)["state"] == "not begun"


def test_status_of_a_complete_run_shows_its_closing_lines(bench: Bench):
    done = bench.score(rows=[{"t": "The king is dead."}, {"t": "Enter a messenger."}], score={"text": "{{ t }}"})
    assert done.code == 0, done.stderr
    heading, figures, *_ = (line for line in done.stderr.splitlines() if not line.startswith("mlx-bulk: "))
    assert "token ppl" in heading
    assert {heading, figures} <= set(shown(bench))
    found = as_json(bench)
    assert found["statistics"]["token_perplexity"] > 1
    assert found["report"] is None
    (done.output / "report.html").write_text("drawn")
    assert f"report    {done.output / 'report.html'}" in shown(bench)
    assert as_json(bench)["report"] == str(done.output / "report.html")
