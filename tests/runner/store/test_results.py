"""Tests reading of committed parts: each is checked, and one is open at a time."""

import resource
from pathlib import Path

import pyarrow as pa
from mlx_bulk.runner.store.commit_log import Commit, append_commit
from mlx_bulk.runner.store.part_file import PartDeclaration, write_part
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.store.results import checked_parts, read_results

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
