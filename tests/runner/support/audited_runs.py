"""Made-up runs over a file of rows, complete or not, and what an audit finds wrong with them."""

import json
from pathlib import Path

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.data.rescan import current_fingerprint
from mlx_bulk.runner.files.checked_json import write_document
from mlx_bulk.runner.runs.audit import Audit
from mlx_bulk.runner.runs.run_files import SCHEMA_VERSION
from mlx_bulk.runner.store.paths import RunPaths

from .sessions import PER_SHARD, ROWS, SAMPLES, work


def write_input(path: Path, rows: int = ROWS) -> None:
    (path.parent / "rows.jsonl").write_text("".join(json.dumps({"text": f"text {row}"}) + "\n" for row in range(rows)))


def describe(path: Path) -> None:
    """Writes run.json, as of a run of the made-up job over the input as it is now."""
    data = DataConfig(path=str(path.parent / "rows.jsonl"))
    config = {
        "job": "generate",
        "data": data.model_dump(mode="json"),
        "batch": {"rows_per_shard": PER_SHARD},
        "sampling": {"n": SAMPLES, "columns": {}},
    }
    run = {"schema_version": SCHEMA_VERSION, "config": config, "cwd": str(path), "identity": {}, "inputs": current_fingerprint(data, path)}
    write_document(RunPaths(path).run, run)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A complete run of ten rows in three shards."""
    path = tmp_path / "run"
    write_input(path)
    work(path)
    describe(path)
    return path


def wrong(found: Audit) -> list[str]:
    """Returns the faults, in short."""
    return [f"{Path(problem.place).name}: {problem.what}; {problem.cure}" for problem in found.problems]
