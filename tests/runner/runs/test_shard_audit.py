"""Tests the audit of shards made by hand: counts of right ones, and the fault of wrong ones."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from mlx_bulk.runner.runs.shard_audit import DamageError, count_shard
from mlx_bulk.runner.store.commit_log import Commit
from mlx_bulk.runner.store.part_file import ERRORS_SCHEMA, PartDeclaration, write_part
from mlx_bulk.runner.store.paths import RunPaths

from ..support.sessions import flip

SAMPLED = pa.schema([("row", pa.int64()), ("sample", pa.int32()), ("completion", pa.string())])
SCORED = pa.schema([("row", pa.int64()), ("sum_logprob", pa.float64())])
START, ROWS = 8, 4  # rows 8 … 11
Sampled = list[tuple[int, int]]
Failed = list[tuple[int, int | None]]

# Rows 8 and 9 have two samples, of row 10 the second failed, row 11 failed whole.
RESULTS: Sampled = [(8, 0), (8, 1), (9, 0), (9, 1), (10, 0)]
ERRORS: Failed = [(10, 1), (11, None)]


def commit(run: Path, results: Sampled, errors: Failed, *, batch: int = 2, generation: int = 1) -> tuple[RunPaths, Commit]:
    """A committed shard of these records, and what its line says."""
    paths = RunPaths(run)
    paths.results.mkdir(parents=True, exist_ok=True)
    paths.errors.mkdir(exist_ok=True)
    declared = PartDeclaration("", 2, ROWS, len(results), len(errors), None)
    failures = [
        {"row": row, "key": f"k{row}", "sample": sample, "stage": "read" if sample is None else "generate", "error": "RowError"}
        for row, sample in errors
    ]
    records = [{"row": row, "sample": sample, "completion": "text"} for row, sample in results]
    errors_batches = [pa.RecordBatch.from_pylist(failures, ERRORS_SCHEMA)]
    batches = [pa.RecordBatch.from_pylist(records[at : at + batch], SAMPLED) for at in range(0, len(records), batch)]
    errors_file = write_part(paths.errors_part(2, generation), ERRORS_SCHEMA, errors_batches, declared) if errors else None
    results_file = write_part(paths.results_part(2, generation), SAMPLED, batches, declared)
    return paths, Commit.of(2, generation, ROWS, (len(results), len(errors)), results_file, errors_file)


def test_a_sound_shard_is_counted(tmp_path: Path):
    paths, committed = commit(tmp_path, RESULTS, ERRORS, generation=3)
    for samples in (2, None):
        count = count_shard(paths, committed, START, samples)
        assert (count.records, dict(count.errors)) == (5, {("generate", "RowError"): 1, ("read", "RowError"): 1})
        assert (count.files, count.bytes) == (2, committed.results_bytes + committed.errors_bytes)


def test_records_without_samples_are_one_a_row(tmp_path: Path):
    paths = RunPaths(tmp_path)
    paths.results.mkdir()
    batch = pa.RecordBatch.from_pylist([{"row": row, "sum_logprob": -1.0} for row in range(START, START + ROWS)], SCORED)
    file = write_part(paths.results_part(2, 1), SCORED, [batch], PartDeclaration("", 2, ROWS, ROWS, 0, None))
    committed = Commit.of(2, 1, ROWS, (ROWS, 0), file, None)
    assert count_shard(paths, committed, START, 1).records == ROWS
    with pytest.raises(DamageError, match="lacks 1 row"):
        count_shard(paths, replace(committed, rows=ROWS + 1), START, 1)


@pytest.mark.parametrize(
    ("results", "errors", "samples", "wrong"),
    [
        ([*RESULTS[:4], (10, 0), (10, 1)], ERRORS, 2, "holds 1 record that stand in errors/ too"),
        ([(8, 0), (8, 0), *RESULTS[1:]], ERRORS, 2, "rows that are not in order, or there twice"),
        ([(8, 1), (8, 0), *RESULTS[2:]], ERRORS, 2, "rows that are not in order, or there twice"),
        ([*RESULTS[2:4], *RESULTS[:2], RESULTS[4]], ERRORS, 2, "rows that are not in order, or there twice"),
        (RESULTS, [(11, None), (10, 1)], 2, "rows that are not in order, or there twice"),
        (RESULTS[1:], ERRORS, 2, "lacks 1 row, or samples of them; the first is row 8"),
        (RESULTS[1:], ERRORS, None, "lacks 1 row, or samples of them; the first is row 8"),
        (RESULTS[2:], ERRORS, None, "lacks 1 row, or samples of them; the first is row 8"),
        (RESULTS, ERRORS[:1], 2, "lacks 1 row, or samples of them; the first is row 11"),
        (RESULTS, ERRORS, 3, "lacks 3 rows, or samples of them; the first is row 8"),
        ([*RESULTS, (11, 0)], ERRORS, 2, "lacks 1 row, or samples of them; the first is row 11"),
        ([*RESULTS, (11, 1)], ERRORS, None, "lacks 1 row, or samples of them; the first is row 11"),
        ([*RESULTS, (12, 0)], ERRORS, 2, "holds rows of another shard"),
        ([(7, 0), *RESULTS], ERRORS, 2, "holds rows of another shard"),
    ],
)
def test_what_is_lost_or_there_twice_is_named(tmp_path: Path, results: Sampled, errors: Failed, samples: int | None, wrong: str):
    paths, committed = commit(tmp_path, results, errors)
    with pytest.raises(DamageError, match=wrong):
        count_shard(paths, committed, START, samples)


def test_the_bytes_are_checked_first(tmp_path: Path):
    paths, committed = commit(tmp_path, RESULTS, ERRORS)
    with pytest.raises(DamageError, match="holds 5 records, its commit says 6"):
        count_shard(paths, replace(committed, records=6), START, 2)
    with pytest.raises(DamageError, match="holds 2 errors, its commit says 0"):
        count_shard(paths, replace(committed, errors=0), START, 2)
    with pytest.raises(DamageError, match="lacks 2 rows"):
        count_shard(paths, replace(committed, errors_sha256=None), START, 2)
    for part, _ in committed.files(paths):
        flip(part)
        with pytest.raises(DamageError, match="is damaged: its sha256 is not the one committed") as raised:
            count_shard(paths, committed, START, 2)
        assert raised.value.part == part
        part.unlink()
        with pytest.raises(DamageError, match="is missing"):
            count_shard(paths, committed, START, 2)
        commit(tmp_path, RESULTS, ERRORS)
