"""Tests rows that fail after a change of the input, when some of their samples are finished. Finished samples stay."""

from typing import Any

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.core.outcomes import Failure, Generated, Outcome
from mlx_bulk.runner.pipeline.io_threads import IOThreads

from ..jobs.support.bench import Bench, Record

ROWS: list[Record] = [{"q": "a"}, {"q": "b c"}, {"q": "d e f"}]
JOB: dict[str, Any] = {
    "sampling": {"max_tokens": 4, "ignore_eos": True, "n": 3, "temperature": 1.0},  # all samples of a row end in one step
    "output": {"fsync_seconds": 0},
}


def verified(bench: Bench) -> int:
    return CliRunner().invoke(cli, ["verify", str(bench.root / "run")]).exit_code


@pytest.fixture
def stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The job, ended when of the row 1 the first sample was recorded."""

    def put(self: IOThreads, outcome: Outcome) -> None:
        if isinstance(outcome, Generated) and (outcome.row, outcome.index) == (1, 1):
            outcome = Failure(1, None, 1, "generate", "Hiccup", "once", "")
        real(self, outcome)

    real = IOThreads.put
    with monkeypatch.context() as patch:
        patch.setattr(IOThreads, "put", put)
        done = bench.run(rows=ROWS, on_error="fail", **JOB)
    assert done.code == 5
    assert "on_error: fail, and row 1 failed at generate: once" in done.last_line
    return bench


@pytest.mark.parametrize(("line", "stage"), [('{"q": null}', "template"), ("{oops", "read")])
def test_missing_samples_of_a_row_fail_one_by_one(stopped: Bench, line: str, stage: str):
    path = stopped.root / "rows.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace('{"q": "b c"}', line))
    done = stopped.run("--adopt", "data.path", **JOB)
    assert (done.code, [(e["row"], e["sample"], e["stage"]) for e in done.errors]) == (3, [(1, 1, stage), (1, 2, stage)])
    assert [(r["row"], r["sample"]) for r in done.records] == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2)]
    assert verified(stopped) == 3
    path.write_text(whole)
    mended = stopped.run("--retry-errors", "--adopt", "data.path", **JOB)
    assert (mended.code, mended.errors, len(mended.records), verified(stopped)) == (0, [], 9, 0)
