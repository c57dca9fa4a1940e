"""Tests what is kept in the user's cache: whole or not at all, and no error where it cannot be kept."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mlx_bulk.runner.files.checked_json import read_document
from mlx_bulk.runner.files.user_cache import remember


def test_what_is_remembered_is_read_again(tmp_path: Path):
    kept = tmp_path / "some" / "folder" / "kept.json"
    for values in ({"a": 1}, {"a": 2}):
        remember(kept, values)
        assert read_document(kept) == values


def test_nothing_is_kept_where_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    remember(tmp_path / "file" / "kept.json", {"a": 1})
    monkeypatch.chdir(tmp_path)
    remember(Path("kept.json"), {"a": 1})  # as where the user has no home
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_one_of_several_that_write_at_once_is_kept_whole(tmp_path: Path):
    values = [{"number": n, "text": "x" * 10_000} for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: remember(tmp_path / "kept.json", each), values * 8))
    assert read_document(tmp_path / "kept.json") in values
