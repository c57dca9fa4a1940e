"""Makes run directories as they are while a run works, and reads the text of ``mlx-bulk status``."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.core.outcomes import Failure
from mlx_bulk.runner.core.shard_layout import Layout
from mlx_bulk.runner.files.checked_lines import append_line
from mlx_bulk.runner.runs.run_dir import RunDir
from mlx_bulk.runner.store.recovery import Recovered
from mlx_bulk.runner.store.writer import Writer

from ...runner.support.sessions import SCHEMA, record

ROWS = 8
SOURCE = {"path": "rows.jsonl", "format": "jsonl", "codec": None, "bytes": 9, "sha256": "ab", "rows": ROWS, "appendable": True}
RUN: dict[str, Any] = {
    "config": {"job": "generate", "model": {"path": "demo"}, "output": {"path": "out put"}},
    "cwd": "/somewhere",
    "identity": {"sampling.seed": 0},
    "inputs": {"limit": None, "sources": [SOURCE]},
}
TOKENS = {"prompt_tokens": 30, "generated_tokens": 60, "scored_tokens": 0}


def failure(row: int, message: str, stage: str = "too_long") -> Failure:
    return Failure(row, f"k{row}", None, stage, "RowError", message, "{}")


def work(run: RunDir, done: range, failures: list[Failure] | None = None) -> Recovered:
    """Does rows, four to a shard, one sample each; what is done of a shard that is not is in its journal."""
    run.bind(RUN)
    recovered = run.recover(Layout(ROWS, 4), SCHEMA)
    writer = Writer(run, run.identity, SCHEMA, Layout(ROWS, 4), recovered, 0.0)
    for row in done:
        writer.admit(row, 1)
        writer.add(row, 0, record(row, 0))
    for failed in failures or []:
        writer.fail(failed)
    writer.close()
    return recovered


def point(run: RunDir, rows: int, errors: int = 0, rate: float = 100.0, ago: float = 0) -> None:
    append_line(run.metrics, {"time": before(ago), "rows": rows, "errors": errors, **TOKENS, "tokens_per_second": rate})


def started(run: RunDir, ago: float = 0) -> None:
    append_line(run.sessions, {"event": "start", "time": before(ago), "pid": os.getpid()})


def before(ago: float) -> str:
    """Returns the time so many seconds before the test began."""
    return (_began[-1] - timedelta(seconds=ago)).isoformat()


_began: list[datetime] = []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder for a test's run; its times count from now."""
    _began.append(datetime.now(UTC).replace(microsecond=0))
    return tmp_path / "run"


def shown(path: Path, *options: str) -> str:
    result = CliRunner().invoke(cli, ["status", str(path), *options], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout
