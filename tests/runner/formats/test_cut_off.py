"""A table that is cut off during reading stops the job with a message. A memory-mapped file would end the process with SIGBUS."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.formats.source import Source
from mlx_bulk.runner.formats.table_formats import open_table

ROWS = 8000
READING = """
import os, sys
from pathlib import Path
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import scan

path = sys.argv[1]
config = DataConfig(path=path)
found = scan(config, Path(path).parent)
rows = read_rows(found, config, [range(found.rows)])
next(rows)
os.truncate(path, 5000)
try:
    list(rows)
except DataError as error:
    print(error)
"""


def write(path: Path) -> Path:
    table = pa.table({"q": [f"{row:0500}" for row in range(ROWS)]})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=1024)
    return path


@pytest.mark.parametrize("name", ["rows.parquet", pytest.param("rows.arrow", marks=pytest.mark.slow)])
def test_a_table_that_is_cut_off_stops_the_job(tmp_path: Path, name: str):
    """Runs in its own process, which must survive to print the message."""
    done = subprocess.run([sys.executable, "-c", READING, str(write(tmp_path / name))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{name} changed since it was scanned at the start." in done.stdout


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_a_table_that_is_cut_off_is_not_taken_for_a_shorter_one(tmp_path: Path, name: str):
    path = write(tmp_path / name)
    _, batches = open_table(Source(str(path), name.partition(".")[2]), DataConfig(path=str(path)))
    assert next(batches).num_rows
    os.truncate(path, 5000)
    with pytest.raises(DataError, match=f"{name}: cannot be read as "):
        list(batches)
