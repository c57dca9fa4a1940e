"""Writes a tiny CLIP with random weights, to try vectors of pictures and texts without a download. They mean nothing.

    python docs/examples/pictures/tiny_clip.py FOLDER

It has the files that transformers saves, with the tokenizer of mlx-bulk's demo model.
"""

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, processors

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
SIDE, PATCH, POSITIONS, DIMENSIONS = 56, 14, 77, 32


def write_tiny_clip(folder: Path) -> None:
    """Writes the checkpoint: tokenizer, image processor, config.json and weights."""
    demo = Path(str(resources.files("mlx_bulk.configs") / "demo"))
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    eos, end = max((number, token.content) for number, token in tokenizer.get_added_tokens_decoder().items())
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, eos)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end, "model_max_length": POSITIONS}
    texts = SIZES | {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": POSITIONS, "eos_token_id": eos}
    pictures = SIZES | {"image_size": SIDE, "patch_size": PATCH}
    config = {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": DIMENSIONS}
    config |= {"text_config": texts, "vision_config": pictures}
    square = {"height": SIDE, "width": SIDE}
    images = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIDE}, "crop_size": square}
    for name, values in {"tokenizer_config": settings, "config": config, "preprocessor_config": images}.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2))
    write_weights(folder / "model.safetensors", texts["vocab_size"])


def write_weights(path: Path, vocabulary: int) -> None:
    """Writes random weights, in transformers' names."""
    import mlx.core as mx

    width, inner, patches = SIZES["hidden_size"], SIZES["intermediate_size"], (SIDE // PATCH) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        "text_model.embeddings.token_embedding.weight": (vocabulary, width),
        "text_model.embeddings.position_embedding.weight": (POSITIONS, width),
        "vision_model.embeddings.class_embedding": (width,),
        "vision_model.embeddings.patch_embedding.weight": (width, 3, PATCH, PATCH),
        "vision_model.embeddings.position_embedding.weight": (patches + 1, width),
        "text_projection.weight": (DIMENSIONS, width),
        "visual_projection.weight": (DIMENSIONS, width),
        "logit_scale": (),
    }
    layers: dict[str, tuple[int, ...]] = {
        f"{tower}.{name}": (width,)
        for tower, name in (("text_model", "final_layer_norm"), ("vision_model", "pre_layrnorm"), ("vision_model", "post_layernorm"))
    }
    for tower in ("text_model", "vision_model"):
        for block in range(SIZES["num_hidden_layers"]):
            own = {f"self_attn.{name}_proj": (width, width) for name in "qkv"} | {"self_attn.out_proj": (width, width)}
            own |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner), "layer_norm1": (width,), "layer_norm2": (width,)}
            layers |= {f"{tower}.encoder.layers.{block}.{name}": shape for name, shape in own.items()}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    rng = np.random.default_rng(0)
    weights = {name: mx.array(rng.normal(0, width**-0.5, shape).astype(np.float32)) for name, shape in shapes.items()}
    mx.save_safetensors(str(path), weights, metadata={"format": "pt"})


if __name__ == "__main__":
    write_tiny_clip(Path(sys.argv[1]))
