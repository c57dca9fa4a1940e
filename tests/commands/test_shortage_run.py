"""Tests ``mlx-bulk run`` with little device memory: batches shrink, and rows that are too large are named."""

import re
from typing import Any

import pytest
from mlx_bulk.runner.checks import engine_setup
from mlx_bulk.runner.core.outcomes import Failure, Outcome
from mlx_bulk.runner.core.requests import Request
from mlx_bulk.runner.engine import engine
from mlx_bulk.runner.engine.decode_batch import DecodeBatch
from mlx_bulk.runner.engine.prefill import ByCalls, Prefilled, prefill_by_calls
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.files.file_stamp import sha256
from mlx_bulk.runner.pipeline.io_threads import IOThreads

from ..jobs.support.bench import Bench, Done, Record

MESSAGE = "[metal::malloc] Attempting to allocate 77 bytes which is greater than the maximum allowed buffer size of 3 bytes."
ROWS: list[Record] = [{"id": f"k{n}", "q": "word " * n} for n in (3, 5, 40, 2, 4, 6)]


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill holds two rows of at most 30 tokens."""

    def tight(setup: Setup, requests: list[Request], prefixes: Any) -> ByCalls[Prefilled]:
        if len(requests) > 2 or max(len(request.prompt.ids) for request in requests) > 30:
            raise RuntimeError(MESSAGE)
        return prefill_by_calls(setup, requests, prefixes)

    monkeypatch.setattr(engine, "prefill_by_calls", tight)


@pytest.mark.usefixtures("little_memory")
def test_a_row_that_is_too_large_is_quarantined_and_the_others_are_done(bench: Bench):
    sections: dict[str, Any] = {"data": {"key": "id"}, "sampling": {"n": 2, "temperature": 1, "max_tokens": 4}}
    done = bench.run(rows=ROWS, **sections)
    assert done.code == 3
    assert [(r["row"], r["sample"]) for r in done.records] == [(row, sample) for row in (0, 1, 3, 4, 5) for sample in (0, 1)]
    assert [(e["row"], e["key"], e["sample"], e["stage"], e["error"]) for e in done.errors] == [
        (2, "k40", sample, "generate", "OutOfMemory") for sample in (0, 1)
    ]
    assert "out of device memory with this row alone: " in done.errors[0]["message"]
    assert "rows.jsonl, line 3" in done.errors[0]["message"]
    assert '"q": "word word' in done.errors[0]["input"]
    said = rf"out of device memory while prefilling 6 rows of up to \d+ tokens \({re.escape(MESSAGE)}\): from now on at most 3 rows at once"
    assert re.search(said, done.stderr)


@pytest.mark.usefixtures("little_memory")
def test_deterministic_batches_cannot_shrink(bench: Bench):
    done = bench.run(rows=ROWS, batch={"deterministic": True, "rows": 4})
    assert done.code == 6
    assert "batch.deterministic can not make its batches smaller: end other programs" in done.last_line


def parts(done: Done) -> dict[str, str]:
    return {file.name: sha256(file) for file in done.output.glob("results/part-*.arrow")}


def test_a_deterministic_batch_that_fits_the_second_time_has_the_same_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Memory runs out in the middle of the second batch."""
    frozen: dict[str, Any] = {"batch": {"deterministic": True, "rows": 4}, "sampling": {"n": 2, "temperature": 1, "max_tokens": 6}}
    steps, step = [0], DecodeBatch.step

    def failing(self: DecodeBatch, setup: Setup) -> None:
        steps[0] += 1
        if steps[0] == 10:
            raise RuntimeError(MESSAGE)
        step(self, setup)

    whole = parts(bench.run(rows=ROWS, **frozen))
    with monkeypatch.context() as patch:
        patch.setattr(DecodeBatch, "step", failing)
        done = bench.run("--overwrite", rows=ROWS, **frozen)
    assert (done.code, parts(done)) == (0, whole)
    assert len(done.records) == 2 * len(ROWS)
    assert "batch.deterministic keeps the batch as it is, which is tried once more" in done.stderr


def test_deterministic_batches_do_not_depend_on_the_memory_of_the_machine_that_continues(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Stopped in the middle of a shard, with its longest row done; the next machine has no room for that row."""
    frozen: dict[str, Any] = {"batch": {"deterministic": True, "rows": 2}, "sampling": {"max_tokens": 4, "ignore_eos": True}}
    whole = parts(bench.run(rows=ROWS, **frozen))
    real, ended = IOThreads.put, [0]

    def put(self: IOThreads, outcome: Outcome) -> None:
        ended[0] += 1
        real(self, Failure(outcome.row, None, outcome.index, "generate", "Hiccup", "", "") if ended[0] == 3 else outcome)  # pyright: ignore

    with monkeypatch.context() as patch:
        patch.setattr(IOThreads, "put", put)
        stopped = bench.run("--overwrite", rows=ROWS, on_error="fail", output={"fsync_seconds": 0}, **frozen)
        assert stopped.code == 5
        assert [path.name for path in (stopped.output / "journal").iterdir()] == ["00000000"]
    with monkeypatch.context() as patch:
        patch.setattr(engine_setup, "kv_bytes", lambda *_, **__: 10_000)  # pyright: ignore
        less = bench.run(rows=ROWS, **frozen)
    assert less.code == 6
    assert "row 2: " in less.last_line
    assert "raise batch.memory" in less.last_line
    assert less.errors == []
    again = bench.run(rows=ROWS, **frozen)
    assert (again.code, again.errors, parts(again)) == (0, [], whole)
