"""Model types that nobody compared with transformers: mlx-vlm's whole model judges them at load.

Families that were compared stand in for such types, so that what is served is known to be right, and what must be refused to be wrong.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.configs.schema import BatchConfig, ModelConfig
from mlx_bulk.runner.checks.engine_setup import FittedModels, fit
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.images import ImageTable
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.images.processors import ImageProcessor
from mlx_bulk.runner.models.checkpoint import find_checkpoint
from mlx_bulk.runner.models.loader import LanguageModel, load_model
from mlx_bulk.runner.vision import picture_reader
from mlx_bulk.runner.vision.towers import Tower
from mlx_bulk.runner.vision.whole_models import WholeModel

from ...checkpoints import PLENTY
from ...vision_folders import write_vision_model

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@pytest.fixture(scope="module", name="folders")
def all_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uncompared")


def folder_of(folders: Path, kind: str) -> Path:
    if not (folders / kind).exists():
        write_vision_model(folders / kind, kind)
    return folders / kind


def opened(folder: Path, **more: Any) -> LanguageModel:
    config = ModelConfig(path=str(folder), **more)
    return load_model(config, find_checkpoint(config), PLENTY, pictures=True)


def fitted(monkeypatch: pytest.MonkeyPatch, folder: Path) -> FittedModels:
    monkeypatch.setattr(picture_reader, "KNOWN", ("qwen2_vl_of_next_year",))
    told = json.loads((folder / "config.json").read_text())
    table = ImageTable(told["image_token_id"] if "image_token_id" in told else told["image_token_index"])
    return fit(opened(folder, unchecked_images=True), BatchConfig(), LogprobOptions(echo=True), images=table)


@pytest.mark.parametrize("kind", ["llava", "idefics3", "mistral3"])
def test_a_right_model_is_served_in_padded_batches(
    kind: str, folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = fitted(monkeypatch, folder_of(folders, kind))
    assert found.setup.features.padded
    assert found.setup.features.right_padded
    assert found.about["unchecked_images"] == kind
    assert f"pictures of the model type {kind} were compared with mlx-vlm alone and not with transformers" in caplog.text
    assert "a fault of mlx-vlm's own tower would not be seen" in caplog.text


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gemma3", r"a row alone has other logprobs than in mlx-vlm|attention_mask_4d beside embeddings"),
        ("qwen2_vl", "tokens of its pictures have other positions than their places in the row"),
        ("qwen3_vl", "tokens of its pictures have other positions than their places in the row"),
        ("llava_next", r"a row of \d+ tokens becomes \d+ embeddings in mlx-vlm|a row alone"),
        ("idefics2", "the image processor tells the text for a picture's place only together with the prompt"),
        ("internvl", "mlx-vlm cannot load the whole model: Received 12 parameters not in model"),
        ("internvl on qwen3", "a row alone has other logprobs than in mlx-vlm, by "),  # GELU, of which mlx-vlm computes another form
    ],
)
def test_what_does_not_fit_is_refused(kind: str, why: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=rf"model\.path: {kind} \({kind.partition(' ')[0]}\) cannot read pictures: .*({why})"):
        fitted(monkeypatch, folder_of(folders, kind))


def test_without_the_key_the_refusal_names_it(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_reader, "KNOWN", ("qwen2_vl_of_next_year",))
    with pytest.raises(ModelError, match=r"\(llava\) cannot read pictures here: .* with model\.unchecked_images: true it is compared with"):
        opened(folder_of(folders, "llava"))


def test_a_tower_that_fails_is_named(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tower, "_embedded", lambda self, inputs, tokens: 1 / 0)
    with pytest.raises(ModelError, match=r"cannot read pictures: .*the vision tower fails on a picture of \d+ tokens: division by zero"):
        fitted(monkeypatch, folder_of(folders, "llava"))


def test_a_model_whose_chats_show_no_pictures_is_refused(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows cannot be tried as runs have them: what stands before a picture may decide its positions."""
    shutil.copytree(folder_of(folders, "llava"), tmp_path / "silent")
    (tmp_path / "silent" / "chat_template.jinja").write_text("{% for message in messages %}{{ message.role }}{% endfor %}")
    with pytest.raises(ModelError, match="no row can be tried as runs have them: its chat template shows no picture"):
        fitted(monkeypatch, tmp_path / "silent")


def test_an_adapter_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_reader, "KNOWN", ("qwen2_vl_of_next_year",))
    config = ModelConfig(path=str(folder_of(folders, "llava")), unchecked_images=True)
    with_adapter = replace(find_checkpoint(config), adapter=folders)
    with pytest.raises(ModelError, match=r"model\.unchecked_images: with an adapter"):
        load_model(config, with_adapter, PLENTY, pictures=True)


def test_features_that_our_tower_gets_wrong_are_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tower._embedded  # pyright: ignore[reportPrivateUsage]

    def turned(self: Tower, inputs: dict[str, mx.array], tokens: int) -> Any:
        made, deepstack = right(self, inputs, tokens)
        return made[::-1], deepstack

    monkeypatch.setattr(Tower, "_embedded", turned)
    with pytest.raises(ModelError, match="a row alone has other logprobs than in mlx-vlm, by "):
        fitted(monkeypatch, folder_of(folders, "llava"))


def test_a_tower_that_sees_nothing_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides agree: only that no picture matters shows it."""
    for name in ("inputs", "inputs_together"):
        right = getattr(ImageProcessor, name)

        def black(self: ImageProcessor, *images: Any, right: Any = right, **more: Any) -> Any:
            return {key: np.zeros_like(value) if key == "pixel_values" else value for key, value in right(self, *images, **more).items()}

        monkeypatch.setattr(ImageProcessor, name, black)
    with pytest.raises(ModelError, match="another picture of the same size does not change its logprobs"):
        fitted(monkeypatch, folder_of(folders, "llava"))


def test_logprobs_that_are_no_numbers_are_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = WholeModel._logits  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(WholeModel, "_logits", lambda self, ids, pictures: right(self, ids, pictures) * mx.nan)
    with pytest.raises(ModelError, match="mlx-vlm's logprobs of a row alone are NaN"):
        fitted(monkeypatch, folder_of(folders, "llava"))
