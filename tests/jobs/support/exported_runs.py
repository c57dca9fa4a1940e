"""Makes runs to export, and exports them with the real command."""

from pathlib import Path

import duckdb
import pyarrow as pa
from click.testing import CliRunner, Result
from mlx_bulk.jobs.cli.main import cli

from .bench import ROWS, Record

FAILING: Record = {"id": "no", "q": None}
HOSTILE: list[Record] = [*ROWS[:3], FAILING, *ROWS[3:], {"id": "f", "q": "=1+1"}]


def export(run: Path, kind: str, to: Path | str, *options: str, code: int = 0) -> Result:
    """Runs ``mlx-bulk export``, which must end with ``code``."""
    result = CliRunner().invoke(cli, ["export", str(run), "--format", kind, "--to", str(to), *options])
    assert result.exit_code == code, result.output
    return result


def queried(query: str) -> pa.Table:
    """Returns the result of a query by DuckDB."""
    found = duckdb.sql(query)
    assert found is not None
    return found.to_arrow_table()
