"""Token ids and pixels of pictures against transformers' own processors, each called as a whole with the same text and pictures."""

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from mlx_bulk.runner.core.errors import ModelError
from mlx_bulk.runner.core.images import FIRST_IMAGE_ID
from mlx_bulk.runner.images.content_parts import NamedPicture
from mlx_bulk.runner.images.placeholders import PictureEncoder
from mlx_bulk.runner.images.processors import load_image_processor, processor_class
from mlx_bulk.runner.images.sources import PictureSources
from mlx_bulk.runner.text.tokenizer import load_tokenizer
from PIL import Image
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from ...vision_folders import MARKS, drawn, family_of, picture_bytes, write_vision_folder

CLASSES = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "qwen3_vl_moe": "Qwen3VLProcessor",
    "qwen3_5": "Qwen3VLProcessor",
    "qwen3_5_moe": "Qwen3VLProcessor",
    "gemma3": "Gemma3Processor",
    "idefics3": "Idefics3Processor",
    "smolvlm": "SmolVLMProcessor",
    "llava": "LlavaProcessor",
    "llava_next": "LlavaNextProcessor",
    "llava_onevision": "LlavaOnevisionProcessor",
    "internvl": "InternVLProcessor",
    "mistral3": "PixtralProcessor",
    "pixtral": "PixtralProcessor",
    "aya_vision": "AyaVisionProcessor",
}
QUICK = ("qwen2_vl", "gemma3", "llava_onevision", "pixtral")  # of each way to cut and to mark pictures
EXTRA: dict[str, dict[str, Any]] = {
    "gemma3": {"image_seq_length": 4},
    "idefics3": {"image_seq_len": 4},
    "smolvlm": {"image_seq_len": 4},
    "internvl": {"image_seq_length": 4},
    "mistral3": {"patch_size": 14, "spatial_merge_size": 2},
    "pixtral": {"patch_size": 14},
    "aya_vision": {"patch_size": 14, "img_size": 56, "downsample_factor": 2},
    "llava": {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    "llava_next": {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    "llava_onevision": {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
}
ROWS = [[], [drawn(60, 40)], [drawn(33, 91, 2), drawn(120, 30, 5)], [drawn(1, 1)], [drawn(3, 50), drawn(60, 40), drawn(60, 40)]]


def theirs(folder: Path, kind: str) -> Any:
    """transformers' processor, made by hand: loading it whole wants torchvision for videos where the model reads some."""
    kind = kind.partition(" ")[0]
    whole = processor_class(CLASSES[kind])
    cls: Any = type(whole.__name__, (whole,), {"check_argument_for_proper_class": lambda self, name, value: None})
    module: Any = sys.modules[whole.__module__]
    if getattr(module, "num2words", "") is None:
        module.num2words = str
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    parts = {"tokenizer": tokenizer, "image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil")}
    return cls(**{name: parts.get(name) for name in cls.get_attributes()}, **EXTRA.get(kind, {}))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in CLASSES])
def test_ids_and_pixels_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / kind, kind)
    oracle, tokenizer = theirs(folder, kind), load_tokenizer(folder, None, {}, False)
    ours = load_image_processor(folder, json.loads((folder / "config.json").read_text()), tokenizer.hf)
    encoder = PictureEncoder(tokenizer, ours, PictureSources((), False), 1_000_000)
    for images in ROWS:
        content = [{"type": "text", "text": "Look: "}]
        for at in range(len(images)):
            content += [{"type": "image"}, {"type": "text", "text": f" and {at}"}]
        messages = [{"role": "user", "content": content}]
        named = [NamedPicture(picture_bytes(image), "images") for image in images]
        prompt = encoder.chat_text(messages, "", {}, "messages", named, tmp_path).prompt()
        text = tokenizer.chat_text(messages, "")
        nested = [images] if kind == "llava_onevision" else images  # by which it knows how many a prompt has, as its chats tell it
        made = oracle(text=[text], images=nested if images else None, add_special_tokens=False, return_tensors="np")
        assert encoder.table.plain(prompt.ids).tolist() == made["input_ids"][0].tolist()
        assert (prompt.ids >= FIRST_IMAGE_ID).sum() == sum(image.tokens for image in prompt.images)
        for image, picture in zip(images, prompt.images, strict=True):
            several = kind == "llava_onevision" and len(images) > 1
            shown = [[image, images[0]]] if several else [image]
            alone = oracle(text=[MARKS[family_of(kind)] * (1 + several)], images=shown, return_tensors="np")
            inputs = picture.inputs()
            assert inputs.keys() <= alone.keys()
            for name, values in inputs.items():
                expected = np.asarray(alone[name])[:1] if several else np.asarray(alone[name])
                np.testing.assert_allclose(values.astype(np.float64), expected, rtol=0, atol=1e-6)
            if "image_grid_thw" in inputs:
                time, height, width = inputs["image_grid_thw"][0].tolist()
                assert picture.grid == (time, height // 2, width // 2)


def test_a_layout_is_found_without_pixels_where_that_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_vision_folder(tmp_path / "qwen")
    tokenizer = load_tokenizer(folder, None, {}, False)
    ours = load_image_processor(folder, json.loads((folder / "config.json").read_text()), tokenizer.hf)
    with monkeypatch.context() as patched:
        patched.setattr(type(ours), "inputs", None)
        patched.setattr(transformers.Qwen2VLProcessor, "_process_images", None)
        layouts = [ours.layout(drawn(*size), "x") for size in [(60, 40), (500, 30), (1, 1), (2000, 1000)]]
    for size, layout in zip([(60, 40), (500, 30), (1, 1), (2000, 1000)], layouts, strict=True):
        assert ours.inputs(drawn(*size), "x")["pixel_values"].shape[0] == 4 * layout.tokens
        assert layout.text == "<|image_pad|>" * layout.tokens


def test_sizes_that_become_the_same_tokens_share_one_layout(tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / "qwen")
    tokenizer = load_tokenizer(folder, None, {}, False)
    ours = load_image_processor(folder, json.loads((folder / "config.json").read_text()), tokenizer.hf)
    first, near, far = (ours.layout(drawn(*size), "x") for size in [(112, 84), (113, 85), (84, 112)])
    assert near is first
    assert far.tokens == first.tokens
    assert far.grid == first.grid[:1] + first.grid[:0:-1]


def test_pictures_of_all_modes_reach_the_processor_as_rgb(tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / "qwen")
    tokenizer = load_tokenizer(folder, None, {}, False)
    ours = load_image_processor(folder, json.loads((folder / "config.json").read_text()), tokenizer.hf)
    encoder = PictureEncoder(tokenizer, ours, PictureSources((), False), 1_000_000)
    for mode, form in [("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("CMYK", "JPEG"), ("1", "PNG"), ("LA", "PNG")]:
        data = picture_bytes(drawn().convert(mode), form)
        [picture] = encoder.chat_text([{"role": "user", "content": "x"}], "", {}, "m", [NamedPicture(data, "images")], tmp_path).images
        with Image.open(BytesIO(data)) as opened:
            expected = ours.inputs(opened.convert("RGB"), "x")
        np.testing.assert_array_equal(picture.inputs()["pixel_values"], expected["pixel_values"])


@pytest.mark.parametrize("damage", ["none", "unknown", "broken"])
def test_a_checkpoint_without_an_image_processor_is_refused(tmp_path: Path, damage: str) -> None:
    folder = write_vision_folder(tmp_path / "qwen")
    settings = folder / "preprocessor_config.json"
    config = json.loads((folder / "config.json").read_text())
    if damage == "none":
        settings.unlink()
    elif damage == "unknown":
        settings.write_text(json.dumps({"image_processor_type": "NoSuchImageProcessor"}))
    else:
        settings.write_text("{")
    tokenizer = load_tokenizer(folder, None, {}, False)
    expected = "holds no preprocessor_config.json" if damage == "none" else "the image processor in .* cannot be loaded"
    with pytest.raises(ModelError, match=expected):
        load_image_processor(folder, config, tokenizer.hf)
