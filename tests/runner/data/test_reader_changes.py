"""Inputs that change between the scan and their last row, or while they are read."""

import gzip
import random
from pathlib import Path

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data.reader import read_rows
from mlx_bulk.runner.data.scan import scan

from ..support.read_inputs import encoded, read_all


@pytest.mark.parametrize("changed", ['{"c": 1}\n{"c": 2}\n{"c": 3}\n', '{"c": 1}\n'])
def test_a_file_that_changed_since_the_scan_stops_the_job(tmp_path: Path, changed: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"c": 1}\n{"c": 2}\n')
    config = DataConfig(path=str(path))
    found = scan(config, tmp_path)
    path.write_text(changed)
    with pytest.raises(DataError, match="changed since it was scanned"):
        list(read_rows(found, config, [range(2)]))


@pytest.mark.parametrize("form", ["jsonl", "txt", "csv", "parquet", "arrow", "stream"])
@pytest.mark.parametrize("change", ["other rows", "appended"])
def test_no_row_of_a_file_that_changes_while_it_is_read_is_handed_on(tmp_path: Path, form: str, change: str) -> None:
    path, before = tmp_path / f"rows.{'arrow' if form == 'stream' else form}", encoded(form)
    path.write_bytes(before)
    config = DataConfig(path=str(path))
    found = scan(config, tmp_path)
    rows = read_rows(found, config, [range(found.rows)])
    handed_on = [next(rows) for _ in range(3)]
    with path.open("r+b") as file:  # in place: readers that are open see it
        file.seek(0, 0 if change == "other rows" else 2)
        file.write(before.replace(b"y 1", b"y 7") if change == "other rows" else b"{}\n")
    with pytest.raises(DataError, match="changed since it was scanned"):
        handed_on.extend(rows)
    path.write_bytes(before)
    assert handed_on == read_all(path, tmp_path)[: len(handed_on)]


@pytest.mark.slow
def test_an_unreadable_file_that_changed_is_reported_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(random.Random(0).randbytes(1 << 20).hex("\n", 256).encode()))  # more than a buffer holds
    config = DataConfig(path=str(path))
    rows = read_rows(scan(config, tmp_path), config, [range(1 << 12)])
    next(rows)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
    with pytest.raises(DataError, match=r"rows\.jsonl\.gz changed since it was scanned"):
        list(rows)
