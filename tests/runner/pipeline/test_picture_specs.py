"""Tests what the spec of a run with pictures holds fast: the image processor's settings, also against a second model's."""

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_bulk.configs.schema import GenerateConfig
from mlx_bulk.configs.score import ScoreConfig
from mlx_bulk.jobs.kinds import KINDS
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.pipeline.run_spec import RunSpec

from ...vision_folders import drawn, picture_bytes, write_vision_folder


def write_model(folder: Path) -> None:
    """A vision model whose weights nobody reads."""
    write_vision_folder(folder)
    (folder / "model.safetensors").write_bytes(b"")


@pytest.fixture(name="folder")
def a_folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    (tmp_path / "a.png").write_bytes(picture_bytes(drawn()))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"q": "what?", "image": "a.png"}))
    return tmp_path


def config(folder: Path, **more: Any) -> dict[str, Any]:
    prompt, output = {"user": "{{ q }}", "images": "image"}, {"path": str(folder / "out")}
    model, data = {"path": str(folder / "model")}, {"path": str(folder / "rows.jsonl")}
    return {"model": model, "data": data, "prompt": prompt, "output": output} | more


def change_settings(folder: Path, **settings: Any) -> None:
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_an_image_processor_with_other_settings_is_drift(folder: Path) -> None:
    def prints(prompt: dict[str, str]) -> dict[str, Any]:
        made = GenerateConfig.model_validate({"job": "generate", **config(folder, prompt=prompt, batch={"deterministic": True})})
        return RunSpec.of(made, folder, KINDS["generate"], afresh=True).identity(made)

    with_pictures, text = {"user": "{{ q }}", "images": "image"}, {"user": "{{ q }}"}
    before, before_text = prints(with_pictures), prints(text)
    change_settings(folder / "model", image_mean=[0.1, 0.2, 0.3])
    after = prints(with_pictures)
    assert {key for key in after if after[key] != before[key]} == {"model.image_processor"}
    assert prints(text) == before_text
    assert after.keys() - before_text.keys() == {"prompt.images", "model.image_processor", "mlx-vlm", "transformers", "Pillow"}


def test_a_reference_that_would_see_other_pixels_is_refused(folder: Path) -> None:
    write_model(folder / "other")
    made = ScoreConfig.model_validate(
        {"job": "score", **config(folder, score={"completion": "x", "reference": {"path": str(folder / "other")}})}
    )
    assert RunSpec.of(made, folder, KINDS["score"], afresh=True).images is not None
    change_settings(folder / "other", image_std=[0.1, 0.2, 0.3])
    with pytest.raises(ModelError, match=r"score\.reference: the image processor of .* has other settings than the model's"):
        RunSpec.of(made, folder, KINDS["score"], afresh=True)
    settings = json.loads((folder / "other" / "config.json").read_text())
    (folder / "other" / "config.json").write_text(json.dumps(settings | {"vision_config": None}))
    with pytest.raises(ModelError, match=r"score\.reference: the model at .* reads text alone, and rows may have pictures"):
        RunSpec.of(made, folder, KINDS["score"], afresh=True)
