"""Tests runs that a signal stops, that die at any record, or that get more input: each (row, sample) comes once.

The child sends itself the signal when it has recorded so many completions, so nothing here waits for a clock.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.pipeline import run_spec

from ..jobs.support.bench import Bench, Done, Record, table_of

CHILD = """
import os, sys
from mlx_bulk.jobs.cli.main import main
from mlx_bulk.runner.store.writer import Writer

numbers, left, add = sys.argv.pop(1).split(","), [int(sys.argv.pop(1))], Writer.add

def counted(self, row, sample, record):
    add(self, row, sample, record)
    left[0] -= 1
    if left[0] == 0:
        for number in numbers:
            os.kill(os.getpid(), int(number))

Writer.add = counted
main()
"""
ROWS: list[Record] = [{"q": "word " * (1 + 7 * row % 13), "id": f"k{row}"} for row in range(40)]
JOB: dict[str, Any] = {
    "data": {"key": "id"},
    "sampling": {"max_tokens": 6, "temperature": 1.0, "n": 2},
    "batch": {"rows": 6, "rows_per_shard": 8},
    "output": {"fsync_seconds": 0},
}
FLOATS = {"logprobs", "cumulative_logprob"}


def assert_same_records(mine: list[Record], theirs: list[Record]) -> None:
    """Equal but for the rounding of logprobs: after a break rows stand in other batches (1e-4 is the contract's)."""
    assert [(r["row"], r["sample"]) for r in mine] == [(r["row"], r["sample"]) for r in theirs]
    for a, b in zip(mine, theirs, strict=True):
        assert {k: v for k, v in a.items() if k not in FLOATS} == {k: v for k, v in b.items() if k not in FLOATS}
        np.testing.assert_allclose(a["logprobs"], b["logprobs"], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """The job without a break."""
    return Bench(tmp_path_factory.mktemp("whole"), model).run(rows=ROWS, **JOB)


def interrupted(bench: Bench, *numbers: int, after: int) -> subprocess.CompletedProcess[str]:
    """The job in a process of its own that sends itself signals when ``after`` completions are recorded."""
    path = bench.write_config(rows=ROWS, **JOB)
    command = [
        sys.executable,
        "-c",
        CHILD,
        ",".join(str(int(number)) for number in numbers),
        str(after),
        "run",
        str(path),
        "--no-supervised",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def commits(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (bench.root / "run/commits.jsonl").read_text().splitlines()]


def sessions(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (bench.root / "run/sessions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_signal_stops_between_steps_and_the_same_command_goes_on(bench: Bench, whole: Done, number: int, code: int):
    child = interrupted(bench, number, after=50)
    assert child.returncode == code
    assert f"mlx-bulk: {signal.Signals(number).name}: finishing this step and saving (again: stop at once)" in child.stderr
    last = child.stderr.rstrip().splitlines()[-1]
    assert last.startswith("stopped; the same command continues: ")
    assert "Traceback" not in child.stderr
    summary = json.loads((bench.root / "run/summary.json").read_text())
    assert not summary["complete"]
    assert 50 <= summary["records"] < 80
    assert sessions(bench)[-1]["how"] == "stopped"
    resumed = bench.run(rows=ROWS, **JOB)
    assert resumed.code == 0
    # What was saved is not done again: the second session generates the rest alone.
    left = 80 - summary["records"]
    assert resumed.last_line.startswith("complete: 40 of 40 rows; ")
    assert json.loads((bench.root / "run/summary.json").read_text())["session"]["generated_tokens"] <= 6 * left
    assert_same_records(resumed.records, whole.records)


@pytest.mark.slow
def test_a_second_signal_stops_at_once(bench: Bench, whole: Done):
    child = interrupted(bench, signal.SIGINT, signal.SIGTERM, after=20)
    assert child.returncode == 143
    assert "SIGINT: finishing this step" in child.stderr
    assert "stopped; the same command" not in child.stderr
    assert_same_records(bench.run(rows=ROWS, **JOB).records, whole.records)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (37, 79))])
def test_killed_at_any_record_and_resumed(bench: Bench, whole: Done, after: int):
    child = interrupted(bench, signal.SIGKILL, after=after)
    assert child.returncode == -signal.SIGKILL
    done_before = {line["name"]: line for line in commits(bench) if "name" in line} if (bench.root / "run/commits.jsonl").exists() else {}
    resumed = bench.run(rows=ROWS, **JOB)
    assert resumed.code == 0
    assert_same_records(resumed.records, whole.records)
    assert resumed.errors == []
    # Shards that were committed before the kill are the same files still.
    assert {name: line for line in commits(bench) if (name := line.get("name")) in done_before} == done_before
    assert list((bench.root / "run/journal").iterdir()) == []


def test_a_longer_limit_extends_the_run(bench: Bench, whole: Done):
    job: dict[str, Any] = {**JOB, "data": {"key": "id", "limit": 11}}
    first = bench.run(rows=ROWS, **job)
    assert (first.code, len(first.records)) == (0, 22)
    part = (bench.root / "run/results/part-00000000.arrow").read_bytes()
    extended = bench.run(rows=ROWS, **JOB)
    assert extended.code == 0
    assert "the input gave 11 rows and gives 40 now; the run is extended" in extended.stderr
    assert_same_records(extended.records, whole.records)
    assert (bench.root / "run/results/part-00000000.arrow").read_bytes() == part
    shorter = bench.run(rows=ROWS, **job)  # a lower limit than is done finds the run complete
    assert shorter.code == 0
    assert_same_records(shorter.records, whole.records)


def test_rows_appended_extend_the_run(bench: Bench, whole: Done):
    first = bench.run(rows=ROWS[:20], **JOB)
    assert (first.code, len(first.records)) == (0, 40)
    extended = bench.run(rows=ROWS, **JOB)
    assert extended.code == 0
    assert_same_records(extended.records, whole.records)
    changed = [{**ROWS[0], "q": "other"}, *ROWS[1:]]
    assert bench.run(rows=changed, **JOB).code == 4


def test_quarantined_rows_stay_so_across_a_resume(bench: Bench):
    rows: list[Record] = [{"q": "a"}, {"q": None}, {"q": "c"}, {"q": None}, {"q": "e"}]
    first = bench.run(rows=rows, data={"limit": 3}, batch={"rows_per_shard": 4})
    assert (first.code, [error["row"] for error in first.errors]) == (3, [1])
    second = bench.run(rows=rows, batch={"rows_per_shard": 4})
    assert (second.code, [error["row"] for error in second.errors]) == (3, [1, 3])
    assert [record["row"] for record in second.records] == [0, 2, 4]
    assert "complete: 5 of 5 rows, 2 quarantined in errors/" in second.last_line


def test_another_process_on_the_same_folder_is_named(bench: Bench):
    from mlx_bulk.runner.runs.run_dir import RunDir

    with RunDir.open(bench.root / "run"):
        done = bench.run()
    assert done.code == 5
    assert f"{bench.root}/run: process " in done.last_line
    assert "is working here. Wait for it, stop it, or choose another --output." in done.last_line
    assert table_of(bench.root / "run/results").num_rows == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_first_step_breaks_off_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int, code: int):
    """Here while the input is read; the model is never loaded."""

    def signalled(*_: object) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not taken")

    monkeypatch.setattr(run_spec, "scan", signalled)
    done = bench.run()
    assert done.code == code
    assert done.stderr == "mlx-bulk: interrupted before the first step of this session; nothing was lost, the same command continues\n"
    monkeypatch.undo()
    assert bench.run().code == 0
