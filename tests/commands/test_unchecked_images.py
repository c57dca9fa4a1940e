"""A run with a model type that nobody compared with transformers: what it says before, at load and after; and that it asks for the key.

LLaVA stands in for such a type.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from mlx_bulk import results
from mlx_bulk.jobs.cli.main import cli
from mlx_bulk.runner.runs.history import unchecked_images
from mlx_bulk.runner.store.paths import RunPaths
from mlx_bulk.runner.vision import picture_reader

from ..vision_folders import drawn, picture_bytes, write_vision_model

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
SAID = "pictures of the model type llava were compared with mlx-vlm alone and not with transformers"


def config_of(folder: Path, name: str, **model: Any) -> str:
    config = {
        "job": "generate",
        "model": {"path": str(folder / "model"), **model},
        "data": {"path": str(folder / "rows.jsonl")},
        "prompt": {"user": "{{ q }}", "images": "image"},
        "sampling": {"max_tokens": 3, "temperature": 0},
        "output": {"path": str(folder / name)},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return str(folder / f"{name}.yaml")


def test_it_is_said_wherever_the_run_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_vision_model(tmp_path / "model", "llava")
    monkeypatch.setattr(picture_reader, "KNOWN", ("qwen2_vl_of_next_year",))
    (tmp_path / "a.png").write_bytes(picture_bytes(drawn(40, 30)))
    rows = [{"q": "what is it?", "image": "a.png"}, {"q": "nothing?", "image": None}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    refused = CliRunner().invoke(cli, ["run", config_of(tmp_path, "without"), "--no-supervised"])
    assert refused.exit_code != 0
    assert "with model.unchecked_images: true it is compared with mlx-vlm at load instead" in " ".join(refused.output.split())
    config = config_of(tmp_path, "with", unchecked_images=True)
    for command in (["plan", config], ["run", config, "--no-supervised"]):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
        assert SAID in " ".join(done.output.split())
    assert results(tmp_path / "with").num_rows == 2
    assert unchecked_images(RunPaths(tmp_path / "with")) == ["llava"]
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "with")]).exit_code == 0
    assert SAID in (tmp_path / "with" / "report.html").read_text()
