"""Tests ``mlx-bulk status`` on run directories in every state: rows, errors, speed, and damaged files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.runs import failures as failures_module
from mlx_bulk.runner.runs.history import token_counts
from mlx_bulk.runner.runs.journal_rows import journaled_rows
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.runs.status import Status, run_status
from mlx_bulk.runner.store.commit_log import read_commits
from mlx_bulk.runner.store.writer import Writer

from ...jobs.support.bench import Bench, Record
from ...jobs.support.run_states import ROWS, RUN, failure, path, point, shown, started, work
from ..support.sessions import SCHEMA, record

__all__ = ["path"]


# -------------------------------------------------------------------------------------------------------------- states


def test_a_run_at_work(path: Path):
    with RunDir.open(path) as run:
        work(run, range(6))
        started(run, ago=60)
        point(run, 3, rate=100, ago=30)
        point(run, 6, rate=300)
        found = run_status(path)
        text = shown(path)
    assert (found.state, found.rows, found.of, found.committed, found.records) == ("running", 6, 8, 4, 4)
    assert found.seconds_left == pytest.approx(20, abs=3)  # two rows at six a minute
    assert found.holder is not None
    assert f"running, process {found.holder.pid} on {found.holder.host} (since " in text
    assert "rows      6 of 8 (75.0 %); 2 in the journal, not in results/ yet\n" in text
    assert "speed     ▃█ 300 tok/s now, 200 tok/s on average\n" in text
    assert "tokens    30 prompt + 60 generated, in 1 min with the model loaded\n" in text
    assert "left      2 rows, less than a minute, until " in text
    assert "continue" not in text


def test_a_job_that_only_reads_texts_has_one_kind_of_token():
    tokens = {"prompt_tokens": 1200, "generated_tokens": 0, "scored_tokens": 0}
    assert token_counts(tokens, {"job": "embed"}) == token_counts(tokens, {"job": "classify"}) == ["1,200"]
    assert token_counts(tokens, {"job": "generate"}) == token_counts(tokens, None) == ["1,200 prompt"]


def test_a_run_that_is_starting_again(path: Path):
    with RunDir.open(path) as run:
        work(run, range(2))
        started(run)
        run.session_ended({"how": "stopped", "rows": 2, "errors": 0})
    with RunDir.open(path):
        found = run_status(path)
    assert (found.state, found.rows) == ("starting", 2)


@pytest.mark.parametrize("killed", [True, False])
def test_a_later_start_without_metrics_keeps_earlier_figures(path: Path, killed: bool):
    """Rows of earlier starts count, those in journals too."""
    with RunDir.open(path) as run:
        work(run, range(3))
        started(run, ago=30)
        if killed:
            point(run, 3)
        else:
            run.session_ended({"how": "stopped", "rows": 3, "errors": 0})
    with RunDir.open(path) as run:
        started(run)
        assert (run_status(path).state, run_status(path).rows) == ("running", 3)
    assert (run_status(path).state, run_status(path).rows) == ("killed", 3)


def test_a_first_start_that_still_reads_its_input(path: Path):
    with RunDir.open(path):
        text = shown(path)
    assert "state     starting (the input is read, then the model loaded), process " in text
    assert "rows      0\n" in text


def test_a_run_that_hangs(path: Path):
    with RunDir.open(path) as run:
        work(run, range(2))
        started(run, ago=1000)
        point(run, 2, ago=400)
        assert re.search(r"no figures for 6 min 4\d s: it hangs, sleeps, or its disk does not answer", shown(path))


def test_a_stopped_run(path: Path):
    with RunDir.open(path) as run:
        work(run, range(3))
        started(run, ago=30)
        point(run, 3)
        run.session_ended({"how": "stopped", "rows": 3, "errors": 0})
    found = run_status(path)
    assert (found.state, found.rows, found.holder) == ("stopped", 3, None)
    assert shown(path).splitlines()[-2:] == [
        "continue  cd /somewhere && mlx-bulk run CONFIG --output 'out put'",
        "          CONFIG is the file that the run was started with; say --set and --model again",
    ]


def test_a_start_that_was_stopped_before_its_first_row_leaves_what_is_there(path: Path):
    with RunDir.open(path) as run:
        work(run, range(5))
        started(run, ago=30)
        point(run, 2, ago=20)  # and three more rows were finished, before it was killed
    with RunDir.open(path) as run:
        started(run)
        run.session_ended({"how": "KeyboardInterrupt", "message": ""})
    found = run_status(path)
    assert (found.state, found.rows) == ("stopped", 5)


def test_a_killed_run(path: Path):
    with RunDir.open(path) as run:
        work(run, range(6))
        started(run, ago=30)
        point(run, 2)  # and two rows were committed after this line, and two more journaled
    found = run_status(path)
    assert (found.state, found.rows, found.committed) == ("killed", 6, 4)
    assert "killed: the process ended without a word; what was finished is safe (last sign of life " in shown(path)


def test_rows_in_the_journal_count_before_the_first_line_of_metrics(path: Path):
    with RunDir.open(path) as run:
        work(run, range(5), [failure(5, "too long")])
        started(run)
        assert (run_status(path).state, run_status(path).rows) == ("running", 6)
    found = run_status(path)
    assert (found.state, found.rows, found.committed, found.errors) == ("killed", 6, 4, 1)
    assert "rows      6 of 8 (75.0 %); 2 in the journal, not in results/ yet\n" in shown(path)


def test_rows_that_lack_samples_are_not_finished(path: Path):
    layout = Layout(ROWS, 8)
    with RunDir.open(path) as run:
        run.bind(RUN)
        writer = Writer(run, run.identity, SCHEMA, layout, run.recover(layout, SCHEMA), 0.0)
        for row, samples in ((0, 2), (1, 1), (2, 2)):
            writer.admit(row, 2)
            for sample in range(samples):
                writer.add(row, sample, record(row, sample))
        writer.fail(failure(3, "too long"))
        writer.close()
        log = read_commits(run)
        assert journaled_rows(run, log, 2) == (3, 1)
        assert journaled_rows(run, log, None) is None


def test_a_run_that_ended_by_an_error(path: Path):
    with RunDir.open(path) as run:
        work(run, range(0))
        started(run)
        run.session_ended({"how": "OutOfRoom", "message": "no room\x1b[2J left"})
    assert run_status(path).state == "failed"
    assert ": OutOfRoom: no room\\x1b[2J left\n" in shown(path)


def test_a_run_that_has_not_started(path: Path):
    with RunDir.open(path) as run:
        run.bind(RUN)
    assert run_status(path).state == "not begun"
    assert "rows      0 of 8 (0.0 %)" in shown(path)


def test_a_complete_run_and_its_json(bench: Bench):
    rows: list[Record] = [{"id": "a", "q": "a"}, {"id": "b", "q": None}, {"id": "c", "q": "c"}]
    done = bench.run(rows=rows, data={"key": "id"})
    found = json.loads(shown(done.output, "--json"))
    assert {name: found[name] for name in ("state", "job", "rows", "of", "rows_committed", "records", "errors", "process", "command")} == {
        "state": "complete",
        "job": "generate",
        "rows": 3,
        "of": 3,
        "rows_committed": 3,
        "records": 2,
        "errors": 1,
        "process": None,
        "command": None,
    }
    assert found["errors_by_class"] == [
        {"stage": "template", "error": "RowError", "count": 1, "row": 1, "key": "b", "message": done.errors[0]["message"]}
    ]
    assert found["ended"]["how"] == "complete"
    assert found["generated_tokens"] == sum(each["completion_tokens"] for each in done.records)
    text = shown(done.output)
    assert "rows      3 of 3 (100 %)\n" in text
    assert "          1 template (RowError), first row 1 (key b): prompt.text: null or missing in this row: q." in text
    assert "left" not in text


# -------------------------------------------------------------------------------------------------------------- errors


def test_errors_are_told_apart_with_the_first_of_each(path: Path):
    with RunDir.open(path) as run:
        failures = [failure(4, "first"), failure(5, "second"), failure(6, "\x1b[2J", "read"), failure(7, "third")]
        work(run, range(4), failures)
        started(run)
        point(run, 8, errors=4)
    [often, other] = run_status(path).kinds
    assert (often.stage, often.count, often.row, often.message) == ("too_long", 3, 4, "first")
    assert (other.stage, other.count, other.row) == ("read", 1, 6)
    text = shown(path)
    assert "errors    4 quarantined\n          3 too_long (RowError), first row 4 (key k4): first\n" in text
    assert "1 read (RowError), first row 6 (key k6): \\x1b[2J\n" in text


def test_errors_of_open_shards_are_among_them(path: Path, monkeypatch: pytest.MonkeyPatch):
    with RunDir.open(path) as run:
        work(run, range(1), [failure(2, "in the journal")])
        started(run)
        point(run, 2, errors=1)
    assert [kind.message for kind in run_status(path).kinds] == ["in the journal"]
    monkeypatch.setattr(failures_module, "_MAX_JOURNAL_BYTES", 0)
    found = run_status(path)
    assert found.kinds == []
    assert found.notes == ["errors: those of shards that are not committed yet are not told apart, as their journals are large"]


# ------------------------------------------------------------------------------------------------------------- no lock


def test_it_neither_needs_nor_disturbs_the_lock(path: Path):
    held = "lock(pathlib.Path(sys.argv[1]), 'mlx-bulk run'); print(flush=True)"
    code = f"import sys, pathlib; from mlx_bulk.runner.files.folder_lock import lock; {held}"
    with RunDir.open(path) as run:
        work(run, range(3))
        started(run)
        before: Status = run_status(path)
        assert before.state == "running"
    assert run_status(path).state == "killed"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True)
