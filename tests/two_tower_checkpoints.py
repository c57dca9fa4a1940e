"""Tiny random CLIP and SigLIP checkpoints as transformers saves them, with tokenizer and image processor; and its own vectors."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from .encoder_shapes import Shapes, spread_weights

Floats = NDArray[np.float32]

WORDS = "a the photo of two three cats dogs red green small large house on in with and day night rain".split()  # noqa: SIM905
SIDE, PATCH = 30, 7  # pixels: the last two of a side are in no patch
TEXT: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "layer_norm_eps": 1e-5,
}
VISION: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "num_channels": 3,
    "image_size": SIDE,
    "patch_size": PATCH,
    "layer_norm_eps": 1e-5,
}


def write_two_towers(folder: Path, kind: str, **text: Any) -> Path:
    """Writes a checkpoint of the ``kind`` clip or siglip. text: settings of the text's tower."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, kind)
    act = "quick_gelu" if kind == "clip" else "gelu_pytorch_tanh"
    vision: dict[str, Any] = VISION | {"hidden_act": act, "model_type": f"{kind}_vision_model"}
    texts: dict[str, Any] = (
        TEXT | {"hidden_act": act, "eos_token_id": tokenizer.token_to_id("</s>"), "model_type": f"{kind}_text_model"} | text
    )
    config: dict[str, Any] = {"model_type": kind, "architectures": ["CLIPModel" if kind == "clip" else "SiglipModel"]}
    if kind == "siglip":
        texts |= {"projection_size": vision["hidden_size"]}
    else:
        config["projection_dim"] = 24
    config |= {"text_config": texts, "vision_config": vision}
    shapes = tower_shapes("text_model", texts, {"token_embedding": texts["vocab_size"]}, texts["max_position_embeddings"])
    shapes |= tower_shapes("vision_model", vision, {}, (SIDE // PATCH) ** 2 + (kind == "clip"))
    shapes |= _clip_shapes(config) if kind == "clip" else _siglip_shapes(config)
    shapes |= {"logit_scale": ()} if kind == "clip" else {"logit_scale": (1,), "logit_bias": (1,)}
    mx.save_safetensors(str(folder / "model.safetensors"), spread_weights(shapes), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    square = {"height": SIDE, "width": SIDE}
    if kind == "clip":
        images: dict[str, Any] = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIDE}, "crop_size": square}
    else:
        images = {"image_processor_type": "SiglipImageProcessor", "size": square}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder


def tower_shapes(prefix: str, config: dict[str, Any], tables: dict[str, int], positions: int) -> Shapes:
    """Weights that the towers of both kinds have. tables: embeddings beside that of positions, and their rows."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    embeddings = {name: (rows, width) for name, rows in (tables | {"position_embedding": positions}).items()}
    shapes: Shapes = {f"{prefix}.embeddings.{name}.weight": shape for name, shape in embeddings.items()}
    for layer in range(config["num_hidden_layers"]):
        products = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
        products |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner), "layer_norm1": (width,), "layer_norm2": (width,)}
        shapes |= biased({f"{prefix}.encoder.layers.{layer}.{name}": shape for name, shape in products.items()})
    return shapes


def _clip_shapes(config: dict[str, Any]) -> Shapes:
    width, seen, size = config["text_config"]["hidden_size"], config["vision_config"]["hidden_size"], config["projection_dim"]
    shapes: Shapes = {"text_projection.weight": (size, width), "visual_projection.weight": (size, seen)}
    shapes |= {"vision_model.embeddings.class_embedding": (seen,)}
    shapes |= {"vision_model.embeddings.patch_embedding.weight": (seen, 3, PATCH, PATCH)}
    norms = {"text_model.final_layer_norm": (width,), "vision_model.pre_layrnorm": (seen,), "vision_model.post_layernorm": (seen,)}
    return shapes | biased(norms)


def _siglip_shapes(config: dict[str, Any]) -> Shapes:
    text, vision = config["text_config"], config["vision_config"]
    width, seen, inner = text["hidden_size"], vision["hidden_size"], vision["intermediate_size"]
    shapes: Shapes = {"vision_model.head.probe": (1, 1, seen)}
    shapes |= {"vision_model.head.attention.in_proj_weight": (3 * seen, seen), "vision_model.head.attention.in_proj_bias": (3 * seen,)}
    products = {"text_model.final_layer_norm": (width,), "text_model.head": (text["projection_size"], width)}
    products |= {"vision_model.embeddings.patch_embedding": (seen, 3, PATCH, PATCH), "vision_model.post_layernorm": (seen,)}
    products |= {"vision_model.head.attention.out_proj": (seen, seen), "vision_model.head.layernorm": (seen,)}
    return shapes | biased(products | {"vision_model.head.mlp.fc1": (inner, seen), "vision_model.head.mlp.fc2": (seen, inner)})


def biased(layers: Shapes) -> Shapes:
    """Weights of layers, and their biases."""
    shapes: Shapes = {f"{name}.weight": shape for name, shape in layers.items()}
    return shapes | {f"{name}.bias": shape[:1] for name, shape in layers.items()}


def write_tokenizer(folder: Path, kind: str) -> Tokenizer:
    """Writes a tokenizer of words that makes texts lower case: <s> a </s> for CLIP, a </s> for SigLIP, whose pad is the EOS too."""
    special = ["<unk>", "<pad>", "<s>", "</s>"]
    vocabulary = {token: place for place, token in enumerate(["<unk>", "<pad>", "<s>", *WORDS, "</s>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(token, vocabulary[token]) for token in ("<s>", "</s>")]
    shape = "<s> $A </s>" if kind == "clip" else "$A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(single=shape, pair=f"{shape} $B </s>", special_tokens=ends)
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    pad = "<pad>" if kind == "clip" else "</s>"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": TEXT["max_position_embeddings"], "unk_token": "<unk>"}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "pad_token": pad, "model_input_names": ["input_ids"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


class Theirs:
    """transformers' model of a folder."""

    def __init__(self, folder: Path):
        import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        self._torch: Any = torch
        self._model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._images: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")

    def of_text(self, text: str) -> Floats:
        """The vector [D] of a text alone, cut as its tokenizer cuts; SigLIP's filled up to all positions, as it was trained."""
        most = self._model.config.text_config.max_position_embeddings
        padding: Any = "max_length" if self._model.config.model_type == "siglip" else False
        encoded = self._tokenizer([text], padding=padding, max_length=most, truncation=True, return_tensors="pt")
        return self.of_ids(encoded["input_ids"][0].tolist())

    def of_ids(self, ids: list[int]) -> Floats:
        """The vector [D] of token ids as they are."""
        with self._torch.no_grad():
            return self._model.get_text_features(self._torch.tensor([ids])).pooler_output[0].numpy()

    def of_picture(self, picture: Image.Image) -> Floats:
        """The vector [D] of a picture alone."""
        pixels = self._torch.from_numpy(self._images(picture, return_tensors="np")["pixel_values"])
        with self._torch.no_grad():
            return self._model.get_image_features(pixels).pooler_output[0].numpy()
