"""The formats of files are those that the settings name, and each has a reader."""

from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.formats.row_entries import entries
from mlx_bulk.runner.formats.source import FILE_FORMATS, Source

ROWS = {
    "jsonl": b'{"prompt": "a"}\n{"prompt": "b"}\n',
    "json": b'[{"prompt": "a"}, {"prompt": "b"}]',
    "csv": b"prompt\na\nb\n",
    "text": b"a\nb\n",
}


def test_the_settings_name_these_formats():
    named = get_args(DataConfig.model_fields["format"].annotation)
    assert {*named} - {"auto", "openai"} == {*FILE_FORMATS}


@pytest.mark.parametrize("name", FILE_FORMATS)
def test_each_format_has_a_reader(name: str, tmp_path: Path):
    path, table = tmp_path / "rows", pa.table({"prompt": ["a", "b"]})
    if name == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif name == "arrow":
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        path.write_bytes(ROWS[name])
    found = [entry.parse() for entry in entries(Source(str(path), name), DataConfig(path=str(path)))]
    assert [next(iter(row.values())) for row in found] == ["a", "b"]
