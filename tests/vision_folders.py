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
from .vision_checkpoints import embedding_scale
from .vision_configs import MAKERS, PINPOINTS, UNCOMPARED

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
_PARTS_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}MARK{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
_IDEFICS = [
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
]
SPECIAL = {
    "qwen": ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"],
    "llava": ["<image>"],
    "gemma3": [],
    "internvl": [],
    "pixtral": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    "aya_vision": ["<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "TILE", "TILE_GLOBAL"],
    "idefics": _IDEFICS,
}
NAMED = {
    "gemma3": {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
}
_QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
FAMILY = {
    "llava_next": "llava",
    "llava_onevision": "llava",
    "idefics2": "idefics",
    "idefics3": "idefics",
    "smolvlm": "idefics",
    "mistral3": "pixtral",
} | dict.fromkeys(_QWEN, "qwen")
MARKS = {
    "qwen": "<|image_pad|>",
    "llava": "<image>",
    "gemma3": "<start_of_image>",
    "idefics": "<image>",
    "internvl": "<IMG_CONTEXT>",
    "pixtral": "[IMG]",
    "aya_vision": "<image>",
}
FEATURES = {"gemma3": "<image_soft_token>", "aya_vision": "<|IMG_PATCH|>"}  # where another token carries the features
SIZE, TILE = 28, 56


def write_vision_folder(folder: Path, kind: str = "qwen2_vl") -> Path:
    """Writes the tokenizer, the image processor and a config without a language model of a tiny vision model of the ``kind``.

    Kinds are those of FAMILY, llava and gemma3. Files are as on the hub: preprocessor_config.json, and the processor's own settings.
    """
    kind, family = kind.partition(" ")[0], family_of(kind)
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(folder)
    hf = AutoTokenizer.from_pretrained(folder, **({"extra_special_tokens": NAMED[family]} if family in NAMED else {}))
    hf.add_special_tokens({"additional_special_tokens": SPECIAL[family]})
    templates = {"qwen": QWEN_TEMPLATE, "llava": LLAVA_TEMPLATE}
    hf.chat_template = templates.get(family, _PARTS_TEMPLATE.replace("MARK", MARKS[family]))
    hf.save_pretrained(folder)
    images, processor, config = _settings(kind, family)
    feature = FEATURES.get(family, MARKS[family])
    config["image_token_id" if family in ("qwen", "idefics", "internvl") else "image_token_index"] = hf.convert_tokens_to_ids(feature)
    config |= {"model_type": "llava" if kind == "pixtral" else kind, "vocab_size": len(hf)}
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"do_rescale": True, "do_normalize": True, "do_convert_rgb": True, **images})
    )
    (folder / "config.json").write_text(json.dumps(config))
    if processor:
        (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def family_of(kind: str) -> str:
    """The kinds that share tokens, templates and processors with a kind; what it says of its text model does not count."""
    bare = kind.partition(" ")[0]
    return FAMILY.get(bare, bare)


def _settings(kind: str, family: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The settings of the image processor, of the processor around it, and of the model."""
    config: dict[str, Any] = {"vision_config": {"patch_size": 14}}
    square = {"height": SIZE, "width": SIZE}
    if family == "qwen":
        patch = 16 if kind.startswith("qwen3") else 14
        images: dict[str, Any] = {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2}
        size = {"shortest_edge": 4 * patch * patch, "longest_edge": 48 * patch * patch}
        return {"image_processor_type": "Qwen2VLImageProcessor", "size": size, **images}, {}, config
    if kind in ("llava_next", "llava_onevision"):  # as the oldest files are: without settings of the processor
        tiles = {"image_grid_pinpoints": PINPOINTS, "size": {"shortest_edge": TILE}, "crop_size": {"height": TILE, "width": TILE}}
        if kind == "llava_onevision":
            tiles |= {"size": {"height": TILE, "width": TILE}, "crop_size": None}
        name = "LlavaNext" if kind == "llava_next" else "LlavaOnevision"
        vision = {
            "patch_size": 14,
            "image_size": TILE,
            "model_type": "clip_vision_model" if kind == "llava_next" else "siglip_vision_model",
        }
        config |= {"vision_config": vision, "image_grid_pinpoints": PINPOINTS}
        config |= {"vision_aspect_ratio": "anyres_max_2"} if kind == "llava_onevision" else {}
        return {"image_processor_type": f"{name}ImageProcessor", **tiles}, {}, config
    if family == "llava":
        images = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIZE}, "crop_size": square}
        return images, {}, config | {"vision_feature_select_strategy": "default"}
    if family == "gemma3":
        images = {"image_processor_type": "Gemma3ImageProcessor", "size": square, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        return images, {"processor_class": "Gemma3Processor", "image_seq_length": 4}, config
    if family in ("internvl", "aya_vision"):
        images = {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": TILE, "width": TILE}, "max_patches": 3}
        images |= {"crop_to_patches": True, "min_patches": 1}
        if family == "internvl":
            return images, {"processor_class": "InternVLProcessor", "image_seq_length": 4}, config
        return images, {"processor_class": "AyaVisionProcessor", "patch_size": 14, "img_size": TILE, "downsample_factor": 2}, config
    if family == "pixtral":
        images = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 4 * SIZE}, "patch_size": 14}
        return images, {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 1 + (kind == "mistral3")}, config
    if kind == "idefics2":
        images = {"image_processor_type": "Idefics2ImageProcessor", "size": {"shortest_edge": SIZE, "longest_edge": TILE}}
        images |= {"do_image_splitting": False, "do_pad": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        return images, {"processor_class": "Idefics2Processor", "image_seq_len": 4}, config
    name = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[kind]
    images = {
        "image_processor_type": f"{name}ImageProcessor",
        "size": {"longest_edge": 4 * SIZE},
        "max_image_size": {"longest_edge": 2 * SIZE},
    }
    images |= {"do_image_splitting": True, "do_pad": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return images, {"processor_class": f"{name}Processor", "image_seq_len": 4}, config


def write_vision_model(folder: Path, kind: str) -> Any:
    """Writes such a folder with random weights, and returns transformers' model of them in float32. Needs torch."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers

    write_vision_folder(folder, kind)
    hf, told = AutoTokenizer.from_pretrained(folder), json.loads((folder / "config.json").read_text())
    cls, config = (MAKERS | UNCOMPARED)[kind](transformers)
    config.text_config.vocab_size = len(hf)
    if kind in ("gemma3", "llava"):
        config.vision_config.image_size = SIZE
    for name in ("image_token_id", "image_token_index"):
        if name in told:
            setattr(config, name, told[name])
    for name, token in (
        ("video_token_id", "<|video_pad|>"),
        ("vision_start_token_id", "<|vision_start|>"),
        ("vision_end_token_id", "<|vision_end|>"),
    ):
        if family_of(kind) == "qwen":
            setattr(config, name, hf.convert_tokens_to_ids(token))
    config.text_config.bos_token_id = config.text_config.eos_token_id = 2
    torch.manual_seed(0)
    model = cls._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim >= 2:
                spread = embedding_scale(kind, config) if "embed_tokens" in name else 1.2 / values[0].numel() ** 0.5
                values.copy_(torch.randn(values.shape) * spread)
    model.save_pretrained(folder)
    return model


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
