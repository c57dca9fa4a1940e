"""Writes inputs in every format, and reads them with a reader."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.requests import BadRow, Row
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import scan

ROWS = [{"q": f"säy {n}", "a": str(n)} for n in range(2500)]  # more than two batches of a table


def read_all(path: object, folder: Path, wanted: Sequence[range] | None = None, **settings: Any) -> list[Row | BadRow]:
    config = DataConfig.model_validate({"path": path if isinstance(path, list) else str(path), **settings})
    found = scan(config, folder)
    return list(read_rows(found, config, [range(found.rows)] if wanted is None else wanted))


def encoded(form: str) -> bytes:
    table = pa.Table.from_pylist(ROWS)
    sink = io.BytesIO()
    if form == "parquet":
        pq.write_table(table, sink)
    elif form in ("arrow", "stream"):
        opened = pa.ipc.new_file(sink, table.schema) if form == "arrow" else pa.ipc.new_stream(sink, table.schema)
        with opened as writer:
            writer.write_table(table)
    else:
        comma = "," if form == "csv" else "\t"
        lines = {
            "jsonl": [json.dumps(row, ensure_ascii=False) for row in ROWS],
            "csv": ["q,a", *(f"{row['q']}{comma}{row['a']}" for row in ROWS)],
            "tsv": ["q\ta", *(f"{row['q']}{comma}{row['a']}" for row in ROWS)],
            "txt": [row["q"] for row in ROWS],
        }[form]
        return ("\n".join(lines) + "\n").encode()
    return sink.getvalue()
