"""A rescan gives the same fingerprint as the scan, and shows any later change."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data.rescan import current_fingerprint
from mlx_bulk.runner.data.scan import scan

LINES = "".join(json.dumps({"id": f"k{row}", "q": "text"}) + "\n" for row in range(6)) + 'torn {"q\n\n'


def write_all(folder: Path) -> None:
    """Files of several kinds, with bad lines, empty lines and a header."""
    (folder / "a.jsonl").write_text(LINES)
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    (folder / "c.csv").write_text("id,q\n1,a\n2,b\n")
    (folder / "d.txt").write_text("one\ntwo\n")
    pq.write_table(pa.table({"id": [1, 2, 3]}), folder / "e.parquet", row_group_size=2)


@pytest.mark.parametrize("limit", [None, 1, 3, 7, 9, 14, 17, 99])
def test_it_gives_the_fingerprint_of_the_scan(tmp_path: Path, limit: int | None):
    write_all(tmp_path)
    names = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl.gz", "c.csv", "e.parquet")]
    data = DataConfig(path=names, limit=limit)
    assert current_fingerprint(data, tmp_path / "run") == scan(data, tmp_path / "run").fingerprint()
    text = DataConfig(path=str(tmp_path / "d.txt"), limit=limit)
    assert current_fingerprint(text, tmp_path / "run") == scan(text, tmp_path / "run").fingerprint()


def test_no_saved_scan_and_no_stamp_is_trusted(tmp_path: Path):
    data = DataConfig(path=str(tmp_path / "a.jsonl"))
    write_all(tmp_path)
    found = scan(data, tmp_path)
    found.save(tmp_path / "inputs.json")
    before = current_fingerprint(data, tmp_path)
    (tmp_path / "a.jsonl").write_text(LINES.replace("text", "TEXT"))
    assert current_fingerprint(data, tmp_path)["sources"][0]["sha256"] != before["sources"][0]["sha256"]


def test_stdin_is_the_copy_in_the_run(tmp_path: Path):
    (tmp_path / "stdin.jsonl").write_text(LINES)
    found: dict[str, Any] = current_fingerprint(DataConfig(path="-"), tmp_path)
    assert [(source["path"], source["rows"]) for source in found["sources"]] == [(str(tmp_path / "stdin.jsonl"), 7)]


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"gone\.jsonl does not exist"):
        current_fingerprint(DataConfig(path=str(tmp_path / "gone.jsonl")), tmp_path)
