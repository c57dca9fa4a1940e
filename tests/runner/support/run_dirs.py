"""Makes run directories that are bound to an identity and hold finished work."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store import journal
from mlx_bulk.runner.store.commit_log import Commit, append_commit
from mlx_bulk.runner.store.journal import Header

SOURCE: dict[str, Any] = {"path": "a", "format": "jsonl", "codec": None, "bytes": 8, "sha256": "ab", "rows": 4, "appendable": False}


INPUTS: dict[str, Any] = {"limit": None, "sources": [SOURCE]}


LONGER: dict[str, Any] = {**INPUTS, "sources": [SOURCE, {**SOURCE, "path": "b", "bytes": 2, "sha256": "cd", "rows": 1}]}


OTHER: dict[str, Any] = {**INPUTS, "sources": [{**SOURCE, "sha256": "ef"}]}


RUN: dict[str, Any] = {"identity": {"sampling.temperature": 1.0, "sampling.seed": 0}, "inputs": INPUTS, "config": {"any": "thing"}}


OF_TEN: dict[str, Any] = {**RUN, "identity": {"batch.rows_per_shard": 4}, "inputs": {**INPUTS, "sources": [{**SOURCE, "rows": 10}]}}


def tree(path: Path) -> dict[str, bytes | None]:
    return {str(item.relative_to(path)): item.read_bytes() if item.is_file() else None for item in path.rglob("*")}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run directory with one of everything."""
    path = tmp_path / "run"
    with RunDir.open(path) as run:
        run.bind(RUN)
        run.session({"host": "here"})
        run.add_metrics({"rows": 1})
        run.write_summary({"rows": 1})
        for file in (
            run.inputs,
            run.commits,
            run.stats,
            run.root / "report.html",
            run.results_part(0, 1),
            run.errors_part(0, 1),
            run.journal_of(1),
        ):
            file.write_bytes(b"")
        (run.root / "stdin.jsonl").write_bytes(b"{}\n")
        (run.results / "part-00000001.arrow.orphan").write_bytes(b"")
        (run.results / ".part-00000001.arrow.tmp").write_bytes(b"")
    return path


def finish(path: Path, *, shards: int, row: int | None = None) -> None:
    """Shards of four rows are committed, and, where ``row`` is given, this one is in a journal."""
    with RunDir.open(path) as run:
        for shard in range(shards):
            append_commit(run, Commit(shard, 1, 4, 4, 0, "ab", 10, None, 0))
        if row is not None:
            journal.begin(run.journal_of(row // 4), Header(row // 4, 1))
            journal.append(run.journal_of(row // 4), journal.RESULTS, pa.RecordBatch.from_pydict({"row": [row]}))
