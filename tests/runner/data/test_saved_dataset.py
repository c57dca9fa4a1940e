"""Folders that ``datasets.save_to_disk`` wrote: their rows are read, their metadata and caches are not."""

from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.core.requests import Row

from ..support.read_inputs import read_all


def rows(path: str, folder: Path, split: str | None = None, form: str = "auto") -> list[object]:
    return [row.columns["q"] for row in read_all(path, folder / "run", split=split, format=form) if isinstance(row, Row)]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A DatasetDict of two splits, the first in two shards, beside a single Dataset."""
    train, test = Dataset.from_dict({"q": ["a", "b", "c"]}), Dataset.from_dict({"q": ["x"]})
    DatasetDict({"train": train, "test": test}).save_to_disk(str(tmp_path / "both"), num_shards={"train": 2, "test": 1})
    train.save_to_disk(str(tmp_path / "one"))
    return tmp_path


def test_saved_datasets_are_read(saved: Path) -> None:
    assert rows(str(saved / "one"), saved) == ["a", "b", "c"]
    assert rows(str(saved / "both"), saved) == ["x", "a", "b", "c"]
    assert rows(str(saved / "both"), saved, "train") == ["a", "b", "c"]
    assert rows(str(saved / "both"), saved, "test") == ["x"]
    assert rows(f"{saved}/both/**", saved) == ["x", "a", "b", "c"]
    with pytest.raises(DataError, match=r"no file has the split 'validation'.*they hold train, test"):
        rows(str(saved / "both"), saved, "validation")


def test_caches_in_a_saved_dataset_are_not_read(saved: Path) -> None:
    one = saved / "one"
    (one / "cache-0123.arrow").write_bytes((one / "data-00000-of-00001.arrow").read_bytes())
    assert rows(str(one), saved) == rows(str(one), saved, form="arrow") == ["a", "b", "c"]


def test_a_shard_that_is_gone_is_named(saved: Path) -> None:
    (saved / "one" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"one/state\.json names 'data-00000-of-00001\.arrow', which is not there\. Copy the whole folder"):
        rows(str(saved / "one"), saved)


def test_a_file_that_is_merely_called_state_is_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "state.json").write_text('{"q": "row"}\n')
    assert rows(str(tmp_path / "in"), tmp_path) == ["row"]
