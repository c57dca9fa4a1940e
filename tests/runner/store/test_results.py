"""Tests reading of committed parts: each is checked, and one is open at a time."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from mlx_bulk.runner.core.errors import RunDirError
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import Commit, append_commit
from mlx_bulk.runner.store.part_file import PartDeclaration, errors_schema, write_part
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import checked_parts, finished_errors, finished_results, read_results

SCHEMA = pa.schema([("row", pa.int64())])
SHARDS = 120


def test_a_run_may_have_more_parts_than_a_process_may_have_files(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    for folder in (paths.results, paths.errors, paths.journal):
        folder.mkdir()
    for shard in range(SHARDS):
        batch = pa.record_batch({"row": [shard]}, schema=SCHEMA)
        file = write_part(paths.results_part(shard, 1), SCHEMA, [batch], PartDeclaration("ab", shard, 1, 1, 0, None))
        append_commit(paths, Commit.of(shard, 1, 1, (1, 0), file, None))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + SHARDS // 2, hard))
    try:
        assert len(list(read_results(tmp_path))) == SHARDS
        assert checked_parts(tmp_path) == [paths.results_part(shard, 1) for shard in range(SHARDS)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_finished_records_are_those_of_whole_parts_and_of_journals(tmp_path: Path) -> None:
    paths, schema = RunPaths(tmp_path), pa.schema([("row", pa.int64()), ("key", pa.string()), ("text", pa.string())])
    for folder in (paths.results, paths.errors, paths.journal):
        folder.mkdir()
    failures = errors_schema(schema)
    for shard in range(2):
        batch = pa.record_batch({"row": [shard], "key": [f"part {shard}"], "text": ["a"]}, schema=schema)
        file = write_part(paths.results_part(shard, 1), schema, [batch], PartDeclaration("ab", shard, 1, 1, 0, None))
        append_commit(paths, Commit.of(shard, 1, 1, (1, 0), file, None))
    paths.results_part(1, 1).write_bytes(b"damaged")
    begun = paths.journal_of(2)
    journal.begin(begun, journal.Header(2, 1, 0, 0))
    journal.append(begun, journal.RESULTS, pa.record_batch({"row": [2], "key": ["journal"], "text": ["b"]}, schema=schema))
    failed = {"row": 3, "key": "failure"}
    journal.append(begun, journal.ERRORS, pa.RecordBatch.from_pylist([dict.fromkeys(failures.names) | failed], schema=failures))
    journal.sync_journal(begun)

    def keys(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, str]]:
        return [(record["row"], record["key"]) for batch in batches for record in batch.to_pylist()]

    assert keys(finished_results(tmp_path, ["row", "key"], sound=True)) == [(0, "part 0"), (2, "journal")]
    assert keys(finished_errors(tmp_path, ["row", "key"], sound=True)) == [(3, "failure")]
    with pytest.raises(RunDirError, match="is damaged"):
        keys(finished_results(tmp_path))
