"""Runs to be exported, and the real command that exports them."""

from pathlib import Path

import duckdb
import pyarrow as pa
from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli

from .bench import ROWS, Record

FAILING: Record = {"id": "no", "q": None}
HOSTILE: list[Record] = [*ROWS[:3], FAILING, *ROWS[3:], {"id": "f", "q": "=1+1"}]


def export(run: Path, kind: str, to: Path | str, *options: str, code: int = 0) -> Result:
    """``mlx-bulk export``, which must end with ``code``."""
    result = CliRunner().invoke(cli, ["export", str(run), "--format", kind, "--to", str(to), *options])
    assert result.exit_code == code, result.output
    return result


def queried(query: str) -> pa.Table:
    """What DuckDB makes of a query."""
    found = duckdb.sql(query)
    assert found is not None
    return found.to_arrow_table()
