"""Writes a tiny vision model with random weights, to try rows with pictures without a download. What it says means nothing.

    python docs/examples/pictures/tiny_model.py FOLDER

It is a Qwen2-VL in the form in which mlx-vlm saves checkpoints, with the tokenizer of mlx-bulk's demo model. It needs `mlx-bulk[vision]`.
"""

import json
import sys
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

MARKS = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "tie_word_embeddings": False,
}
VISION = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": 14, "in_channels": 3}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 280 * 280},  # pixels
}


def write_tiny_model(folder: Path) -> None:
    """Writes the checkpoint: tokenizer, chat template, image processor, config.json and weights."""
    tokenizer = AutoTokenizer.from_pretrained(str(resources.files("mlx_bulk.configs") / "demo"))
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    ids = dict(zip(MARKS, tokenizer.convert_tokens_to_ids(MARKS), strict=True))
    config: dict[str, Any] = TEXT | {
        "model_type": "qwen2_vl",
        "vocab_size": len(tokenizer),
        "vision_config": VISION | {"model_type": "qwen2_vl"},
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "bos_token_id": ids["<|im_start|>"],
        "eos_token_id": ids["<|im_end|>"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=2))
    write_weights(folder / "model.safetensors", config)


def write_weights(path: Path, config: dict[str, Any]) -> None:
    """Writes random weights, in the names that mlx-vlm gives them."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    qwen2_vl = import_module("mlx_vlm.models.qwen2_vl")
    mx.random.seed(0)
    settings = qwen2_vl.ModelConfig.from_dict(dict(config))
    settings.text_config = qwen2_vl.TextConfig.from_dict(config)
    settings.vision_config = qwen2_vl.VisionConfig.from_dict(config["vision_config"])
    model = qwen2_vl.Model(settings)
    mx.save_safetensors(str(path), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"})


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
