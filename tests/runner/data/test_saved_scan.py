"""A saved scan is reused while nothing has changed, and only then."""

import os
from pathlib import Path
from time import time_ns

import pytest
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data import scan as scans
from mlx_bulk.runner.data.scan import SCAN_FILE, scan
from mlx_bulk.runner.data.scan_result import Scan, source_stamp
from mlx_bulk.runner.files.checked_json import read_document, write_document
from mlx_bulk.runner.formats.source import Source

from ..support.input_scans import jsonl, scanned

LATER = time_ns() + 3600 * 10**9  # so long after a file of these tests was written that another write would show


def test_saved_scan_round_trips_and_is_reused_while_nothing_changed(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"c": [{"x": 1}], "j": 1}, {"j": "s"}])
    data = DataConfig(path=str(path))
    run = tmp_path / "run"
    run.mkdir()
    first = scan(data, run)
    first.save(run / SCAN_FILE)
    assert Scan.load(run / SCAN_FILE) == first
    assert Scan.load(run / SCAN_FILE).schema.equals(first.schema, check_metadata=True)

    saved = read_document(run / SCAN_FILE)
    write_document(run / SCAN_FILE, saved | {"rows": 77})  # a mark that only a reused scan bears
    os.utime(run / SCAN_FILE, ns=(LATER, LATER))
    assert scan(data, run).rows == 77
    assert scan(data.model_copy(update={"limit": 1}), run).rows == 1
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert scan(data, run).rows == 2


def test_a_scan_saved_just_after_the_file_was_written_is_not_reused(tmp_path: Path) -> None:
    """Other rows of the same length may have been written since, under the same mtime."""
    path = jsonl(tmp_path / "rows.jsonl", [{"c": 1}])
    run = tmp_path / "run"
    run.mkdir()
    data = DataConfig(path=str(path))
    scan(data, run).save(run / SCAN_FILE)
    stat = path.stat()
    path.write_text('{"d": 1}\n')
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert scan(data, run).columns == ["d"]


def test_the_stamp_of_a_small_file_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"c": 1}])
    saved = tmp_path / "run" / SCAN_FILE
    saved.parent.mkdir()
    scanned(tmp_path, path).save(saved)
    jsonl(path, [{"d": 1}])
    kept = read_document(saved)
    kept["sources"][0]["stamp"] = source_stamp(Source(str(path), "jsonl"))[1]  # as where a change leaves all times as they were
    write_document(saved, kept)
    os.utime(saved, ns=(LATER, LATER))
    assert scanned(tmp_path, path).columns == ["d"]
    monkeypatch.setattr(scans, "HASHED_BYTES", path.stat().st_size)
    assert scanned(tmp_path, path).columns == ["c"]


def test_a_large_file_written_in_place_whose_mtime_was_put_back_is_scanned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "HASHED_BYTES", 0)
    path = jsonl(tmp_path / "rows.jsonl", [{"c": 1}])
    saved = tmp_path / "run" / SCAN_FILE
    saved.parent.mkdir()
    scanned(tmp_path, path).save(saved)
    os.utime(saved, ns=(LATER, LATER))
    stat = path.stat()
    path.write_text('{"d": 1}\n')
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert scanned(tmp_path, path).columns == ["d"]


@pytest.mark.parametrize("damage", ["", "{}", '{"version": 2}', "[1]"])
def test_a_damaged_saved_scan_is_not_used(tmp_path: Path, damage: str) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"c": 1}])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / SCAN_FILE).write_text(damage)
    with pytest.raises(DataError, match="Delete it"):
        Scan.load(tmp_path / "run" / SCAN_FILE)
    assert scanned(tmp_path, path).rows == 1


def test_the_fingerprint_tells_how_the_bytes_are_read(tmp_path: Path) -> None:
    """A renamed file has the same bytes, and may give other rows."""
    found = []
    for name in ("x.csv", "x.tsv", "x.txt"):
        (tmp_path / name).write_text("text\na\n")
        (one,) = scanned(tmp_path, tmp_path / name).fingerprint()["sources"]
        found.append((one["format"], one["codec"], one["sha256"]))
    assert [kind for kind, _, _ in found] == ["csv", "tsv", "text"]
    assert len({digest for _, _, digest in found}) == 1


def test_a_saved_scan_with_a_flipped_bit_is_not_used(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"c": 1}])
    saved = tmp_path / "run" / SCAN_FILE
    saved.parent.mkdir()
    scanned(tmp_path, path).save(saved)
    saved.write_bytes(saved.read_bytes().replace(b'"rows": 1', b'"rows": 9'))
    os.utime(saved, ns=(LATER, LATER))
    assert scanned(tmp_path, path).rows == 1


def test_a_run_reuses_the_scan_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(scans, "REMEMBERED_BYTES", 10)
    path = jsonl(tmp_path / "rows.jsonl", [{"a": 1}, {"a": 2}])
    data = DataConfig(path=str(path))
    first = scan(data, tmp_path / "nowhere")
    [kept] = (tmp_path / "cache" / "mlx-bulk" / "scans").iterdir()
    write_document(kept, read_document(kept) | {"rows": 77})  # a mark that only a reused scan bears
    os.utime(kept, ns=(LATER, LATER))
    assert scan(data, tmp_path / "run").rows == scan(data, tmp_path / "run", afresh=True).rows == 77
    assert scan(data.model_copy(update={"limit": 1}), tmp_path / "run").rows == 1
    path.write_text('{"a": 1}\n{"b": 2}\n')
    assert scan(data, tmp_path / "run").columns == ["a", "b"]
    assert first.rows == 2


def test_a_small_input_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scan(DataConfig(path=str(jsonl(tmp_path / "rows.jsonl", [{"a": 1}]))), tmp_path / "run")
    assert not (tmp_path / "cache").exists()
