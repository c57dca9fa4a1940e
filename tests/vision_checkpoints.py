"""Tiny random vision models as transformers saves them, in the names of transformers 4 too, and their float32 logprobs of a row alone.

Weights are spread, so that a wrong mask, position or feature moves logprobs by more than 1.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from numpy.typing import NDArray

VOCABULARY, PLACEHOLDER, START, END = 300, 290, 292, 293
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "idefics3", "smolvlm", "llava")
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
QWEN: dict[str, Any] = {"image_token_id": PLACEHOLDER, "video_token_id": 291, "vision_start_token_id": START, "vision_end_token_id": END}
QWEN_TOWER: dict[str, Any] = {"hidden_size": 64, "num_heads": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
TOWER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
SECTIONS: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
IN_TURNS: dict[str, Any] = SECTIONS | {"mrope_section": [3, 3, 2], "mrope_interleaved": True}


def _qwen2(hf: Any) -> tuple[Any, Any]:
    vision = QWEN_TOWER | {"depth": 3, "embed_dim": 64, "patch_size": 14, "mlp_ratio": 2}
    text = TEXT | {"rope_parameters": SECTIONS, "tie_word_embeddings": False}
    return hf.Qwen2VLForConditionalGeneration, hf.Qwen2VLConfig(text_config=text, vision_config=vision, **QWEN)


def _qwen25(hf: Any) -> tuple[Any, Any]:
    more = {
        "depth": 4,
        "intermediate_size": 96,
        "patch_size": 14,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1, 3],
    }
    text = TEXT | {"rope_parameters": SECTIONS, "tie_word_embeddings": False}
    return hf.Qwen2_5_VLForConditionalGeneration, hf.Qwen2_5_VLConfig(text_config=text, vision_config=QWEN_TOWER | more, **QWEN)


def _qwen3(hf: Any) -> tuple[Any, Any]:
    more: dict[str, Any] = {"depth": 4, "intermediate_size": 96, "patch_size": 16, "out_hidden_size": 64, "num_position_embeddings": 64}
    more["deepstack_visual_indexes"] = [0, 1, 2]
    text = TEXT | {"head_dim": 16, "rope_parameters": IN_TURNS, "tie_word_embeddings": False}
    return hf.Qwen3VLForConditionalGeneration, hf.Qwen3VLConfig(text_config=text, vision_config=QWEN_TOWER | more, **QWEN)


def _gemma3(hf: Any) -> tuple[Any, Any]:
    text = TEXT | {"hidden_size": 96, "head_dim": 16, "num_hidden_layers": 7, "sliding_window": 12, "query_pre_attn_scalar": 16}
    vision, marks = TOWER | {"vision_use_head": False}, {"boi_token_index": START, "eoi_token_index": END}
    config = hf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=PLACEHOLDER, **marks)
    return hf.Gemma3ForConditionalGeneration, config


def _idefics3(hf: Any, name: str = "Idefics3") -> tuple[Any, Any]:
    text = TEXT | {"model_type": "llama", "pad_token_id": 0}
    settings: dict[str, Any] = {"image_token_id": PLACEHOLDER, "scale_factor": 2, "pad_token_id": 0, "tie_word_embeddings": False}
    config = getattr(hf, f"{name}Config")(text_config=text, vision_config=TOWER, **settings)
    return getattr(hf, f"{name}ForConditionalGeneration"), config


def _llava(hf: Any) -> tuple[Any, Any]:
    vision = TOWER | {"model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 64}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "image_seq_length": 16, "vision_feature_layer": -2}
    config = hf.LlavaConfig(vision_config=vision, text_config=TEXT | {"model_type": "llama"}, **settings)
    return hf.LlavaForConditionalGeneration, config


MAKERS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen25,
    "qwen3_vl": _qwen3,
    "gemma3": _gemma3,
    "idefics3": _idefics3,
    "smolvlm": lambda hf: _idefics3(hf, "SmolVLM"),
    "llava": _llava,
}


@dataclass
class VisionModel:
    """A model of transformers', saved in ``folder``."""

    family: str
    folder: Path
    model: Any

    @property
    def in_grids(self) -> bool:
        """Whether pictures have as many tokens as their size asks for; else all have as many."""
        return self.family.startswith("qwen")

    def picture(self, table: ImageTable, height: int, width: int, seed: int) -> PromptImage:
        """A picture of noise of so many tokens in height and width, where the family knows sizes."""
        noise = np.random.default_rng(seed)
        if self.in_grids:
            size = self.model.config.vision_config.patch_size
            pixels = noise.standard_normal((4 * height * width, 3 * 2 * size * size)).astype(np.float32)
            inputs = {"pixel_values": pixels, "image_grid_thw": np.array([[1, 2 * height, 2 * width]], np.int64)}
            tokens, grid = height * width, (1, height, width)
        else:
            pixels = noise.standard_normal((1, 3, 56, 56)).astype(np.float32)
            inputs = {"pixel_values": pixels[None] if self.family in ("idefics3", "smolvlm") else pixels}
            tokens = 16 if self.family == "llava" else 4
            grid = (1, 1, tokens)
        return table.register(f"{self.family} {height} {width} {seed}", tokens, grid, lambda: dict(inputs))

    def logprobs(self, ids: NDArray[np.int32], table: ImageTable) -> NDArray[np.float64]:
        """transformers' float32 log-softmax [T, V] of a row by itself, in one call."""
        import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)

        plain = torch.tensor(table.plain(ids)[None].astype(np.int64))
        feed: dict[str, Any] = {"input_ids": plain, "attention_mask": torch.ones_like(plain)}
        types = (plain == PLACEHOLDER).long()
        if self.family == "gemma3":
            feed["token_type_ids"] = types
        if self.in_grids:
            feed["mm_token_type_ids"] = types
        begins = [int(i) for i in ids if i >= 1 << 24 and table.image_of(int(i)).first == i]
        made = [table.image_of(i).inputs() for i in begins]
        if made:
            along = 1 if self.family in ("idefics3", "smolvlm") else 0
            feed["pixel_values"] = torch.tensor(np.concatenate([one["pixel_values"] for one in made], axis=along))
            if self.in_grids:
                feed["image_grid_thw"] = torch.tensor(np.concatenate([one["image_grid_thw"] for one in made]))
        with torch.no_grad():
            logits = self.model(**feed).logits[0].double().numpy()
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def write_vision_model(
    family: str, folder: Path, vocabulary: int = VOCABULARY, placeholder: int = PLACEHOLDER, image_size: int = 56
) -> VisionModel:
    """Makes a random model and saves it as transformers 5 does, for a tokenizer and an image processor of these sizes."""
    import torch  # pyright: ignore[reportMissingImports]  (the extra oracle has it)
    import transformers

    made, config = MAKERS[family](transformers)
    config.text_config.vocab_size, config.image_token_id = vocabulary, placeholder
    if hasattr(config.vision_config, "image_size"):
        config.vision_config.image_size = image_size
    torch.manual_seed(0)
    model = made._from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim < 2:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise if "embed_tokens" in name else noise * 1.2 / weight[0].numel() ** 0.5)
    model.float().eval().save_pretrained(folder)
    return VisionModel(family, folder, model)


def write_old_names(made: VisionModel, folder: Path) -> Path:
    """Writes the same checkpoint under the names that hub folders of transformers 4 have."""
    import mlx.core as mx

    folder.mkdir(parents=True)
    config: dict[str, Any] = json.loads((made.folder / "config.json").read_text())
    weights: Any = mx.load(str(made.folder / "model.safetensors"))
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    if made.family == "gemma3":
        text["rope_local_base_freq"], text["rope_theta"] = (rope[f"{kind}_attention"]["rope_theta"] for kind in ("sliding", "full"))
    else:
        text["rope_theta"] = rope["rope_theta"]
    if made.in_grids:
        config["vision_config"] = {k: v for k, v in config["vision_config"].items() if k != "rope_parameters"} | {"model_type": made.family}
        text["rope_scaling"] = {"type": "mrope", **{k: v for k, v in rope.items() if k.startswith("mrope")}}
    if made.family in ("qwen2_vl", "qwen2_5_vl"):  # the text's settings stood beside those of the whole
        config = {k: v for k, v in text.items() if k != "model_type"} | {k: v for k, v in config.items() if k != "text_config"}
    if made.family in ("gemma3", "llava"):
        weights = {k.replace("vision_tower.", "vision_tower.vision_model."): v for k, v in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder
