"""Tokenizers and image processors of tiny vision checkpoints, as users have them on disk, without weights; and pictures to show them."""

import json
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoTokenizer

from .checkpoints import copy_tokenizer

QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message.role | upper }}: {% for part in message.content %}{% if part.type == 'image' %}<image>\n"
    "{% else %}{{ part.text }}{% endif %}{% endfor %} {% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
SPECIAL = {
    "qwen2_vl": ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    "llava": ["<image>"],
}
SIZE = 28


def write_vision_folder(folder: Path, kind: str = "qwen2_vl") -> Path:
    """Writes the tokenizer, the image processor and a config without a language model of a tiny ``qwen2_vl`` or ``llava``."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(folder)
    hf = AutoTokenizer.from_pretrained(folder)
    hf.add_special_tokens({"additional_special_tokens": SPECIAL[kind]})
    hf.chat_template = QWEN_TEMPLATE if kind == "qwen2_vl" else LLAVA_TEMPLATE
    hf.save_pretrained(folder)
    vision: dict[str, Any] = {"patch_size": 14}
    config: dict[str, Any] = {"model_type": kind, "vision_config": vision, "vocab_size": len(hf)}
    images: dict[str, Any] = {"do_rescale": True, "do_normalize": True, "do_convert_rgb": True}
    if kind == "qwen2_vl":
        config["image_token_id"] = hf.convert_tokens_to_ids("<|image_pad|>")
        images |= {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
        images |= {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}}
    else:
        config |= {"image_token_index": hf.convert_tokens_to_ids("<image>"), "vision_feature_select_strategy": "default"}
        images |= {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIZE}}
        images |= {"crop_size": {"height": SIZE, "width": SIZE}}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def drawn(width: int = 60, height: int = 40, shade: int = 0) -> Image.Image:
    """A picture with edges and slopes, another for each ``shade``."""
    y, x = np.mgrid[:height, :width]
    planes = [127 + 120 * np.sin(x / 7 + y / 11 + shade), 255 * ((x // 9 + y // 5 + shade) % 2), 255 * x / max(width - 1, 1)]
    return Image.fromarray(np.stack(planes, -1).clip(0, 255).astype(np.uint8))


def picture_bytes(image: Image.Image | None = None, form: str = "PNG", **options: Any) -> bytes:
    """The picture as a file's bytes."""
    stream = BytesIO()
    (image or drawn()).save(stream, form, **options)
    return stream.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"
