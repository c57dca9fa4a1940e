"""Tests ``--retry-errors`` in the real command: quarantined rows run again, alone, and move to where they belong.

What fails here is made to fail from outside, once: without a cause that is gone a row fails again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.jobs.verify.verify import verify_exit_code
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome
from mlx_bulk.runner.files.file_stamp import sha256
from mlx_bulk.runner.pipeline.io_threads import IOThreads
from mlx_bulk.runner.runs.audit import audit_run
from mlx_bulk.runner.runs.status import run_status
from mlx_bulk.runner.store import journal

from ..jobs.support.bench import Bench, Done, Record

ROWS: list[Record] = [{"q": "word " * (1 + 5 * row % 7), "id": f"k{row}"} for row in range(10)]
JOB: dict[str, Any] = {
    "data": {"key": "id"},
    "sampling": {"max_tokens": 4, "temperature": 1.0, "n": 2},
    "batch": {"rows": 4, "rows_per_shard": 4, "deterministic": True},
}
Fail = Callable[[set[tuple[int, int]]], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Done:
    """The job in which nothing fails."""
    return Bench(tmp_path_factory.mktemp("whole"), model).run(rows=ROWS, **JOB)


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Makes these rows and samples fail in the engine, and no others from then on."""

    def failing(places: set[tuple[int, int]]) -> None:
        def put(self: IOThreads, outcome: Outcome) -> None:
            if isinstance(outcome, Generated) and (outcome.row, outcome.index) in places:
                outcome = Failure(outcome.row, None, outcome.index, "generate", "Hiccup", "once", "")
            real(self, outcome)

        monkeypatch.setattr(IOThreads, "put", put)

    real = IOThreads.put
    return failing


def parts(done: Done) -> dict[tuple[str, str], str]:
    """The parts' hashes by folder and shard, whatever their generation."""
    return {(file.parent.name, file.name[:13]): sha256(file) for file in done.output.glob("*/part-*.arrow")}


def test_failed_samples_are_done_again_and_the_run_is_as_if_they_never_had(bench: Bench, whole: Done, fail: Fail):
    """Deterministic: bytes are compared."""
    fail({(1, 0), (6, 0), (6, 1)})
    first = bench.run(rows=ROWS, **JOB)
    assert (first.code, [(e["row"], e["sample"]) for e in first.errors]) == (3, [(1, 0), (6, 0), (6, 1)])
    fail(set())
    again = bench.run(rows=ROWS, **JOB)
    assert (again.code, len(again.errors)) == (3, 3)  # nobody asked for them
    fail({(6, 1)})
    retried = bench.run("--retry-errors", rows=ROWS, **JOB)
    assert (retried.code, [(e["row"], e["sample"]) for e in retried.errors]) == (3, [(6, 1)])
    fail(set())
    last = bench.run("--retry-errors", rows=ROWS, **JOB)
    assert (last.code, last.errors) == (0, [])
    assert last.records == whole.records
    assert parts(last) == parts(whole)
    assert "complete: 10 of 10 rows" in last.last_line
    assert not list(last.output.glob("*/*.orphan"))


def test_rows_that_never_came_to_the_engine_are_retried_too(bench: Bench):
    job: dict[str, Any] = {**JOB, "batch": {"rows_per_shard": 4}}
    rows: list[Record] = [{"q": row["q"] if number % 3 else None} for number, row in enumerate(ROWS)]
    job["data"] = {}
    first = bench.run(rows=rows, **job)
    assert (first.code, [e["row"] for e in first.errors]) == (3, [0, 3, 6, 9])
    retried = bench.run("--retry-errors", rows=rows, **job)
    assert (retried.code, retried.errors, retried.records) == (3, first.errors, first.records)
    assert "4 failed at template" in retried.stderr


def test_a_retry_cut_short_at_its_first_journal_is_told_and_finished_by_the_plain_command(
    bench: Bench, whole: Done, fail: Fail, monkeypatch: pytest.MonkeyPatch
):
    fail({(1, 0), (6, 0)})
    assert bench.run(rows=ROWS, **JOB).code == 3
    with monkeypatch.context() as patch:
        patch.setattr(journal, "begin", interrupted)
        bench.run("--retry-errors", rows=ROWS, **JOB)
    run = bench.root / "run"
    assert verify_exit_code(audit_run(run)) == 5
    found = run_status(run)
    assert found.state != "complete"
    assert found.notes == ["the errors of 2 shards are to be done again, as --retry-errors asked; any start does that"]
    fail(set())
    done = bench.run(rows=ROWS, **JOB)
    assert (done.code, done.errors) == (0, [])
    assert parts(done) == parts(whole)
    assert verify_exit_code(audit_run(run)) == 0
    assert (run_status(run).state, run_status(run).notes) == ("complete", [])


def interrupted(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_without_errors_the_command_does_nothing(bench: Bench, whole: Done):
    bench.run(rows=ROWS, **JOB)
    before = parts(whole)
    done = bench.run("--retry-errors", rows=ROWS, **JOB)
    assert done.code == 0
    assert done.last_line.startswith("complete already: 10 of 10 rows")
    assert parts(done) == before
