"""Splits of local files: those of ``datasets.load_dataset``, a split that no file has, and the line where all are read."""

import json
import logging
from pathlib import Path

import pytest
from datasets import load_dataset_builder
from mlx_bulk.configs.data import DataConfig
from mlx_bulk.runner.core.errors import DataError
from mlx_bulk.runner.data.rescan import stored_data
from mlx_bulk.runner.data.sources import find_sources

README = """---
configs:
- config_name: small
  default: true
  data_files:
  - {split: train, path: a.jsonl}
  - {split: test, path: ["b*.jsonl", c.jsonl]}
- config_name: large
  data_files: big/*.jsonl
---
# Rows
"""
ONE_CONFIG = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: holdout, path: a.jsonl}\n---\n"


def rows_in(folder: Path, names: list[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"q": name}) + "\n")
    return folder


def found(path: Path | list[Path], base: Path, split: str | None = None, config: str | None = None) -> list[str]:
    paths = [str(one) for one in path] if isinstance(path, list) else str(path)
    sources = find_sources(DataConfig(path=paths, split=split, config=config), base / "run")
    return [str(Path(source.path).relative_to(base)) for source in sources]


@pytest.mark.parametrize(
    "names",
    [
        ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-00000-of-00001.jsonl"],
        ["data/holdout-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl", "other.jsonl"],
        ["train.jsonl", "test.jsonl", "more.jsonl"],
        ["my_train_1.jsonl", "dev.jsonl", "evaluation-2.jsonl"],
        ["training/a.jsonl", "val/a.jsonl", "val/test.jsonl"],
        ["x-train/deep/a.jsonl", "test2/b.jsonl"],
        ["a.jsonl", "b.jsonl"],
        ["trainer.jsonl", "contest.jsonl"],
        ["Train.jsonl", "latest.jsonl"],
        ["validation.jsonl"],
    ],
)
def test_names_give_the_splits_that_datasets_finds(tmp_path: Path, names: list[str]) -> None:
    folder = rows_in(tmp_path / "in", names)
    builder = load_dataset_builder(str(folder), cache_dir=str(tmp_path / "cache"))
    files_of = builder.config.data_files or {}
    theirs = {str(split): sorted(str(Path(file).relative_to(folder)) for file in files) for split, files in files_of.items()}
    assert {split: found(folder, folder, split) for split in theirs} == theirs
    for split in {"train", "validation", "test", "holdout"} - theirs.keys():
        with pytest.raises(DataError, match=rf"data\.split: no file has the split '{split}'"):
            found(folder, folder, split)


def test_a_readme_names_the_files_of_splits_and_configurations(tmp_path: Path) -> None:
    folder = rows_in(tmp_path / "in", ["a.jsonl", "b1.jsonl", "b2.jsonl", "c.jsonl", "big/d.jsonl", "train.jsonl"])
    (folder / "README.md").write_text(README)
    assert found(folder, folder, "test") == ["b1.jsonl", "b2.jsonl", "c.jsonl"]
    assert found(folder, folder, "train", "large") == found(folder, folder, None, "large") == ["big/d.jsonl"]
    with pytest.raises(DataError, match=r"data\.config: found 'huge', and .*README\.md names small, large"):
        found(folder, folder, None, "huge")
    with pytest.raises(DataError, match=r"no file has the split 'validation'.*they hold train, test\. Correct data\.split"):
        found(folder, folder, "validation")
    (folder / "README.md").write_text(README.replace("  default: true\n", ""))
    with pytest.raises(DataError, match=r"data\.config: not set, and .*README\.md names small, large; set one of them"):
        found(folder, folder, "test")
    (folder / "README.md").write_text(ONE_CONFIG)
    assert found(folder, folder, "holdout") == ["a.jsonl"]


def test_a_split_whose_files_are_gone_is_not_listed_as_one_that_is_there(tmp_path: Path) -> None:
    folder = rows_in(tmp_path / "in", ["a.jsonl", "c.jsonl"])
    configs = [{"config_name": "small", "data_files": [{"split": "train", "path": "a.jsonl"}, {"split": "test", "path": "gone.jsonl"}]}]
    (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
    with pytest.raises(DataError, match=r"'test'.*the folder's metadata names it, but none of its files is there\. Correct"):
        found(folder, folder, "test")


def test_a_split_that_nothing_tells_is_refused(tmp_path: Path) -> None:
    folder = rows_in(tmp_path / "in", ["rows.jsonl", "test.jsonl"])
    for path in (folder / "rows.jsonl", folder / "row*.jsonl", [folder / "rows.jsonl"]):
        assert found(path, folder, "train") == ["rows.jsonl"]  # as in datasets
        with pytest.raises(DataError, match=r"nothing divides them into splits\. Correct data\.split, or remove it to read all files"):
            found(path, folder, "test")
    with pytest.raises(DataError, match=r"data\.config: found 'small', but .* is no folder whose README\.md names configurations"):
        found(folder / "rows.jsonl", folder, None, "small")


def test_files_of_a_list_are_picked_by_their_names(tmp_path: Path) -> None:
    folder = rows_in(tmp_path / "in", ["x/train.jsonl", "y/test.jsonl", "y/other.jsonl"])
    files = [folder / "y/test.jsonl", folder / "x/train.jsonl", folder / "y/other.jsonl"]
    assert found(files, folder, "test") == ["y/test.jsonl"]
    assert found(files, folder, "train") == ["x/train.jsonl", "y/other.jsonl"]


def test_several_splits_that_are_read_as_one_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = rows_in(tmp_path / "in", ["data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"])
    assert len(found(folder, folder)) == 2
    assert [record.message for record in caplog.records] == [
        f"data.path: {folder} holds the splits test, train, and all are read. data.split picks one."
    ]


def test_older_runs_on_local_files_know_no_split() -> None:
    old = {"path": "test.jsonl", "split": "train"}
    assert stored_data({"config": {"data": old}}).split is None
    assert stored_data({"config": {"data": {"path": "hf:a/b", "split": "test"}}}).split == "test"
    assert stored_data({"config": {"data": DataConfig(path="test.jsonl", split="test").model_dump()}}).split == "test"


@pytest.mark.parametrize(("front", "line"), [("configs: [", ":2"), ("a: 1\nb: 'x", ":3"), ("day: 2024-99-99", "")])
def test_a_readme_whose_front_matter_is_no_yaml_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, front: str, line: str):
    folder = rows_in(tmp_path / "rows", ["train.jsonl", "test.jsonl"])
    (folder / "README.md").write_text(f"---\n{front}\n---\n# Rows\n")
    at = f", line {line[1:]}" if line else ""
    with caplog.at_level(logging.WARNING, "mlx_bulk"):
        assert found(folder, tmp_path, "test") == ["rows/test.jsonl"]
        assert found(folder, tmp_path) == ["rows/test.jsonl", "rows/train.jsonl"]
    [said] = [record.getMessage() for record in caplog.records]
    assert said == (
        f"{folder}/README.md{at}: what stands between its lines of dashes is no YAML, and is left out; splits go by the names of files"
    )
