"""Tests the tokenizer of a finished run: found at its relative path, without the weights, and only if it is the same."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.models.checkpoint import checkpoint_fingerprints, find_tokenizer
from mlx_bulk.runner.models.checkpoint import find_checkpoint as find_model
from mlx_bulk.runner.models.run_tokenizer import tokenizer_of

from ...checkpoints import DEMO, copy_tokenizer


def config_of(path: str) -> GenerateConfig:
    sections: dict[str, Any] = {"data": {"path": "x"}, "prompt": {"text": "x"}, "output": {"path": "y"}}
    return GenerateConfig.model_validate({"job": "generate", "model": {"path": path}, **sections})


def run_of(cwd: Path) -> dict[str, Any]:
    return {"cwd": str(cwd), "identity": {"model.tokenizer": find_tokenizer(config_of("demo").model)[1]}}


def test_its_fingerprint_is_that_of_the_whole_checkpoint():
    model = config_of("demo").model
    assert find_tokenizer(model) == (DEMO, checkpoint_fingerprints(find_model(model))["model.tokenizer"])


def test_a_relative_path_starts_where_the_run_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "there/model").mkdir(parents=True)
    copy_tokenizer(tmp_path / "there/model")  # no weights are needed
    monkeypatch.chdir(tmp_path)
    found = tokenizer_of(config_of("model"), run_of(tmp_path / "there"))
    assert found.encode_text("a").ids.tolist() == tokenizer_of(config_of("demo"), run_of(tmp_path)).encode_text("a").ids.tolist()


def test_another_tokenizer_is_refused(tmp_path: Path):
    copy_tokenizer(tmp_path)
    with (tmp_path / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    with pytest.raises(ModelError, match="is not the one that the run was made with"):
        tokenizer_of(config_of(str(tmp_path)), run_of(tmp_path))


def test_of_a_hub_model_no_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def snapshot_download(path: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert (path, revision) == ("org/name", None)
        asked.append(allow_patterns)
        shutil.copytree(DEMO, tmp_path / "snapshot", ignore=shutil.ignore_patterns("*.safetensors"))
        return str(tmp_path / "snapshot")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    tokenizer_of(config_of("org/name"), run_of(tmp_path))
    [patterns] = asked
    assert "*.json" in patterns
    assert not [name for name in patterns if "safetensors" in name]
