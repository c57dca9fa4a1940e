"""Tests runs of embed and classify as commands: vectors that batches do not change, fixed bytes, rows that fail, retries, breaks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlx_bulk.runner.core.outcomes import Failure, Outcome, Pooled
from mlx_bulk.runner.pipeline.io_threads import IOThreads
from mlx_bulk.runner.pool_engine.pooler import Pooler

from ..jobs.support.bench import Bench, Done, Record

WORDS = ["the", "king", "is", "dead,", "long", "live", "café", "東京", "and", "a", "messenger", "enters", "with", "news", "from", "Rome"]
ROWS: list[Record] = [
    {"id": f"k{row}", "q": " ".join(WORDS[(row + i) % len(WORDS)] for i in range(1 + 11 * row % 17))} for row in range(40)
]
EMBED: dict[str, Any] = {"job": "embed", "prompt": {"text": "{{ q }}"}, "embed": {"pooling": "mean"}}
CLASSIFY: dict[str, Any] = {"job": "classify", "prompt": {"text": "{{ q }}"}, "classify": {"true_token": "e", "false_token": "o"}}
NAMES = ("job", "column")
CLASSIFYING = pytest.param(CLASSIFY, "logits", id="classify")
JOBS = pytest.mark.parametrize(NAMES, [pytest.param(EMBED, "embedding", id="embed"), CLASSIFYING])
EMBEDDING_IS_SLOW = pytest.mark.parametrize(NAMES, [pytest.param(EMBED, "embedding", id="embed", marks=pytest.mark.slow), CLASSIFYING])


def ran(bench: Bench, name: str, rows: list[Record], *options: str, **sections: Any) -> Done:
    data = {"path": str(bench.root / "rows.jsonl"), "key": "id"}
    return bench.score("--output", str(bench.root / name), *options, rows=rows, **{"data": data, **sections})


def vectors(done: Done, column: str) -> dict[str, Any]:
    assert done.code == 0, done.stderr
    return {record["key"]: np.array(record[column]) for record in done.records}


@pytest.mark.slow
@JOBS
def test_vectors_are_the_same_in_batches_of_any_size_and_order(bench: Bench, job: dict[str, Any], column: str):
    alone = vectors(ran(bench, "alone", ROWS, **job, batch={"rows": 1}), column)
    shuffled = [ROWS[i] for i in np.random.default_rng(0).permutation(len(ROWS))]
    for name, order, batch in (
        ("four", ROWS, {"rows": 4}),
        ("shards", ROWS, {"rows": 7, "rows_per_shard": 5}),
        ("shuffled", shuffled, {"rows": 128}),
        ("tokens", ROWS, {"tokens": 30}),
        ("deterministic", ROWS, {"deterministic": True}),
    ):
        found = vectors(ran(bench, name, order, **job, batch=batch), column)
        assert found.keys() == alone.keys()
        for key, vector in found.items():  # 1e-5 of a vector's length, float32's rounding
            np.testing.assert_allclose(vector, alone[key], rtol=0, atol=1e-5 * max(1.0, float(np.linalg.norm(alone[key]))))


@EMBEDDING_IS_SLOW
def test_deterministic_records_have_the_same_bytes_also_in_another_order(bench: Bench, job: dict[str, Any], column: str):
    batch = {"rows": 4, "deterministic": True, "rows_per_shard": 16}
    rows = [*ROWS, {"id": "again", "q": ROWS[3]["q"]}]
    shuffled = [rows[i] for i in np.random.default_rng(1).permutation(len(rows))]
    once, again, other = (ran(bench, name, order, **job, batch=batch) for name, order in (("a", rows), ("b", rows), ("c", shuffled)))
    assert parts(once) == parts(again)
    names = [name for name in once.table.column_names if name != "row"]
    assert once.table.select(names).sort_by("key").equals(other.table.select(names).sort_by("key"))
    assert vectors(once, column)["again"].tobytes() == vectors(once, column)["k3"].tobytes()


def parts(done: Done) -> list[bytes]:
    return [part.read_bytes() for part in sorted((done.output / "results").glob("part-*.arrow"))]


@JOBS
def test_a_column_that_no_row_has_is_refused_and_values_of_another_type_stop_at_once(bench: Bench, job: dict[str, Any], column: str):
    done = ran(bench, "run", ROWS, **{**job, "prompt": {"text": "{{ question }}"}})
    assert done.code == 5
    assert "no row has a column 'question'" in done.last_line
    done = ran(bench, "run", [{"id": f"k{i}", "q": None} for i in range(20)], **job)
    assert done.code == 5
    assert "the first 20 rows all failed at template, and nothing was run" in done.last_line


def failing_at(monkeypatch: pytest.MonkeyPatch, rows: set[int]) -> None:
    """Makes these rows fail in the engine, and no others from then on."""
    real = getattr(IOThreads.put, "real", IOThreads.put)

    def put(self: IOThreads, outcome: Outcome) -> None:
        if isinstance(outcome, Pooled) and outcome.row in rows:
            outcome = Failure(outcome.row, None, outcome.index, "pool", "Hiccup", "once", "")
        real(self, outcome)

    put.real = real  # pyright: ignore[reportFunctionMemberAccess]
    monkeypatch.setattr(IOThreads, "put", put)


@EMBEDDING_IS_SLOW
def test_failed_rows_are_retried_and_the_run_is_as_if_they_never_had(
    bench: Bench, job: dict[str, Any], column: str, monkeypatch: pytest.MonkeyPatch
):
    job = {**job, "batch": {"rows": 4, "rows_per_shard": 8, "deterministic": True}}
    whole = ran(bench, "whole", ROWS, **job)
    failing_at(monkeypatch, {1, 30})
    first = ran(bench, "run", ROWS, **job)
    assert (first.code, [(e["row"], e["key"], e["stage"]) for e in first.errors]) == (3, [(1, "k1", "pool"), (30, "k30", "pool")])
    failing_at(monkeypatch, set())
    last = ran(bench, "run", ROWS, "--retry-errors", **job)
    assert (last.code, last.errors) == (0, [])
    assert last.records == whole.records


@JOBS
def test_the_first_failure_ends_a_run_that_is_told_so(bench: Bench, job: dict[str, Any], column: str, monkeypatch: pytest.MonkeyPatch):
    failing_at(monkeypatch, {5})
    done = ran(bench, "run", ROWS, **job, on_error="fail")
    assert done.code == 5
    assert "row 5" in done.last_line
    assert "once" in done.last_line


@JOBS
def test_a_run_that_is_broken_off_goes_on_where_it_was(bench: Bench, job: dict[str, Any], column: str, monkeypatch: pytest.MonkeyPatch):
    """The first run dies in its fifth batch; no vector is computed twice."""
    job = {**job, "batch": {"rows": 4, "rows_per_shard": 8}, "output": {"fsync_seconds": 0}}
    calls: list[int] = []
    real = Pooler._vectors  # pyright: ignore[reportPrivateUsage]
    broken = [False]

    def counted(self: Pooler, batch: Any) -> Any:
        if len(calls) == 4 and not broken[0]:
            broken[0] = True
            raise KeyboardInterrupt
        calls.append(len(batch.inputs))
        return real(self, batch)

    monkeypatch.setattr(Pooler, "_vectors", counted)
    ran(bench, "run", ROWS, **job)
    assert broken[0]
    assert len(calls) == 4
    done = ran(bench, "run", ROWS, **job)
    assert done.code == 0, done.stderr
    assert [record["row"] for record in done.records] == list(range(40))
    assert sum(calls) == 40


def test_a_vector_that_overflows_goes_to_the_errors(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    real = Pooler._vectors  # pyright: ignore[reportPrivateUsage]

    def overflown(self: Pooler, batch: Any) -> Any:
        found = real(self, batch).copy()
        for line, each in zip(found, batch.inputs, strict=False):
            if any(row == 7 for row, _ in each.owners):
                line[3] = np.inf
        return found

    monkeypatch.setattr(Pooler, "_vectors", overflown)
    done = ran(bench, "run", ROWS, **EMBED)
    (error,) = done.errors
    assert (done.code, error["row"], error["stage"], error["error"], len(done.records)) == (3, 7, "pool", "NotFinite", 39)
    assert error["message"].startswith("1 of the model's 64 numbers for it are NaN or infinite")
    assert "1 quarantined in errors/" in done.last_line


def test_a_run_that_has_no_rows_is_complete(bench: Bench):
    Path(bench.root / "rows.jsonl").write_text("")
    done = bench.score(rows=[], **EMBED)
    assert done.code == 0, done.stderr
