"""Configs of tiny vision models of each architecture, and pictures of noise as their image processors hand them on."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY, PLACEHOLDER, START, END = 300, 290, 292, 293
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
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
PINPOINTS = [[56, 112], [112, 56], [112, 112]]  # of tiles of 56 pixels
TILE_TOKENS = 4  # of Idefics 3
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


def _idefics2(hf: Any) -> tuple[Any, Any]:
    text = TEXT | {"model_type": "mistral", "sliding_window": None, "pad_token_id": 0}
    perceiver = {"resampler_n_latents": 4, "resampler_depth": 2, "resampler_n_heads": 4, "resampler_head_dim": 16, "num_key_value_heads": 2}
    perceiver |= {"hidden_size": 64, "rms_norm_eps": 1e-6}
    settings: dict[str, Any] = {"image_token_id": PLACEHOLDER, "perceiver_config": perceiver, "tie_word_embeddings": False}
    return hf.Idefics2ForConditionalGeneration, hf.Idefics2Config(text_config=text, vision_config=TOWER, **settings)


def _llava(hf: Any) -> tuple[Any, Any]:
    vision = TOWER | {"model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 64}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "image_seq_length": 16, "vision_feature_layer": -2}
    config = hf.LlavaConfig(vision_config=vision, text_config=TEXT | {"model_type": "llama"}, **settings)
    return hf.LlavaForConditionalGeneration, config


def _llava_next(hf: Any) -> tuple[Any, Any]:
    vision = TOWER | {"model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 64}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "image_grid_pinpoints": PINPOINTS, "tie_word_embeddings": False}
    config = hf.LlavaNextConfig(vision_config=vision, text_config=TEXT | {"model_type": "mistral", "sliding_window": None}, **settings)
    return hf.LlavaNextForConditionalGeneration, config


def _onevision(hf: Any) -> tuple[Any, Any]:
    vision = TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}
    text = TEXT | {"model_type": "qwen2", "tie_word_embeddings": False}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "video_token_index": 291, "image_grid_pinpoints": PINPOINTS}
    config = hf.LlavaOnevisionConfig(
        vision_config=vision, text_config=text, vision_aspect_ratio="anyres_max_1", tie_word_embeddings=False, **settings
    )
    return hf.LlavaOnevisionForConditionalGeneration, config


def _qwen3_moe(hf: Any) -> tuple[Any, Any]:
    vision = _qwen3(hf)[1].vision_config.to_dict()
    text = TEXT | EXPERTS | {"head_dim": 16, "rope_parameters": IN_TURNS, "tie_word_embeddings": False}
    return hf.Qwen3VLMoeForConditionalGeneration, hf.Qwen3VLMoeConfig(text_config=text, vision_config=vision, **QWEN)


def _internvl(hf: Any, text: str = "qwen2") -> tuple[Any, Any]:
    own = TEXT | {"model_type": text, "tie_word_embeddings": False} | ({"head_dim": 16} if text == "qwen3" else {})
    vision: dict[str, Any] = TOWER | {"image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True}
    config = hf.InternVLConfig(
        text_config=own, vision_config=vision, image_token_id=PLACEHOLDER, image_seq_length=4, tie_word_embeddings=False
    )
    return hf.InternVLForConditionalGeneration, config


PIXTRAL: dict[str, Any] = TOWER | {
    "model_type": "pixtral",
    "image_size": 112,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},  # not mlx-vlm's default
}


def _mistral3(hf: Any, text: str = "mistral") -> tuple[Any, Any]:
    own = TEXT | {"model_type": text, "head_dim": 16, "sliding_window": None, "tie_word_embeddings": False}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "spatial_merge_size": 2, "vision_feature_layer": -1}
    config = hf.Mistral3Config(vision_config=PIXTRAL, text_config=own, tie_word_embeddings=False, **settings)
    return hf.Mistral3ForConditionalGeneration, config


def _pixtral(hf: Any) -> tuple[Any, Any]:
    text = TEXT | {"model_type": "mistral", "head_dim": 16, "sliding_window": None, "tie_word_embeddings": False}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    return hf.LlavaForConditionalGeneration, hf.LlavaConfig(vision_config=PIXTRAL, text_config=text, **settings)


def _aya(hf: Any) -> tuple[Any, Any]:
    layers = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 12}
    # transformers' model of pictures leaves the text's scale of logits out; its text model, and ours, do not.
    text = TEXT | layers | {"model_type": "cohere2", "head_dim": 16, "logit_scale": 1.0, "eos_token_id": 2, "bos_token_id": 2}
    vision = TOWER | {"model_type": "siglip_vision_model", "vision_use_head": False}
    settings: dict[str, Any] = {"image_token_index": PLACEHOLDER, "vision_feature_layer": -1, "alignment_intermediate_size": 128}
    return hf.AyaVisionForConditionalGeneration, hf.AyaVisionConfig(vision_config=vision, text_config=text, **settings)


LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "full_attention_interval": 2,
    "head_dim": 16,
}


def _qwen35(hf: Any, name: str = "Qwen3_5") -> tuple[Any, Any]:
    rope = SECTIONS | {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    more = EXPERTS | {"shared_expert_intermediate_size": 32} if name.endswith("Moe") else {}
    text = TEXT | LINEAR | more | {"rope_parameters": rope, "tie_word_embeddings": False}
    vision: dict[str, Any] = {"depth": 4, "intermediate_size": 96, "patch_size": 16, "out_hidden_size": 64, "num_position_embeddings": 64}
    config = getattr(hf, f"{name}Config")(text_config=text, vision_config=QWEN_TOWER | vision, **QWEN)
    return getattr(hf, f"{name}ForConditionalGeneration"), config


MAKERS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen25,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3_moe,
    "qwen3_5": _qwen35,
    "qwen3_5_moe": lambda hf: _qwen35(hf, "Qwen3_5Moe"),
    "gemma3": _gemma3,
    "idefics3": _idefics3,
    "smolvlm": lambda hf: _idefics3(hf, "SmolVLM"),
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _onevision,
    "internvl": _internvl,
    "internvl on qwen3": lambda hf: _internvl(hf, "qwen3"),
    "mistral3": _mistral3,
    "mistral3 on ministral3": lambda hf: _mistral3(hf, "ministral3"),
    "pixtral": _pixtral,
    "aya_vision": _aya,
}
FAMILIES = tuple(MAKERS)
UNCOMPARED: dict[str, Callable[[Any], tuple[Any, Any]]] = {"idefics2": _idefics2}  # whose rows are held against nothing
ONLY_NEW = ("qwen3_5", "qwen3_5_moe", "mistral3 on ministral3")  # no checkpoints of transformers 4 hold them


def in_grids(family: str) -> bool:
    """Whether a family's pictures have positions in rows and columns."""
    return family.startswith("qwen")


def made_pixels(family: str, config: Any, height: int, width: int, seed: int) -> tuple[dict[str, NDArray[Any]], int]:
    """What a processor hands on of a picture of so many tokens in height and width, where the family knows sizes; and its tokens."""
    noise = np.random.default_rng(seed)

    def pixels(*shape: int) -> NDArray[np.float32]:
        return noise.standard_normal(shape).astype(np.float32)

    if in_grids(family):
        size = config.vision_config.patch_size
        grid = np.array([[1, 2 * height, 2 * width]], np.int64)
        return {"pixel_values": pixels(4 * height * width, 3 * 2 * size * size), "image_grid_thw": grid}, height * width
    if family.startswith(("mistral3", "pixtral")):
        side = 14 if family == "pixtral" else 28
        sizes = np.array([[side * height, side * width]], np.int64)
        return {"pixel_values": pixels(1, 3, side * height, side * width), "image_sizes": sizes}, height * width
    if family.startswith("internvl") or family == "aya_vision":  # in tiles
        return {"pixel_values": pixels(height, 3, 56, 56)}, 4 * height
    if family in ("idefics3", "smolvlm"):  # in tiles, the whole picture behind them
        tiles = height + (height > 1)
        return {"pixel_values": pixels(1, tiles, 3, 56, 56)}, TILE_TOKENS * tiles
    if family in ("llava_next", "llava_onevision"):  # tiles, and the size in pixels of what they are cut from
        size = (20 * height, 20 * width + seed)
        tiles, tokens = tiles_of(family, config, size)
        return {"pixel_values": pixels(1, tiles, 3, 56, 56), "image_sizes": np.array([size], np.int64)}, tokens
    return {"pixel_values": pixels(1, 3, 56, 56)}, 4 if family == "gemma3" else 16


def tiles_of(family: str, config: Any, size: tuple[int, int]) -> tuple[int, int]:
    """How many tiles transformers' processor cuts of a picture of this height and width, the whole included, and its tokens."""
    import transformers
    from transformers.image_processing_utils import select_best_resolution

    kind: Any = transformers.LlavaNextProcessor if family == "llava_next" else transformers.LlavaOnevisionProcessor
    processor = object.__new__(kind)
    processor.image_processor, processor.patch_size = SimpleNamespace(image_grid_pinpoints=PINPOINTS), 14
    processor.num_image_tokens, processor.num_additional_image_tokens = 16, 0
    processor.vision_aspect_ratio = getattr(config, "vision_aspect_ratio", None)
    rows, columns = (side // 56 for side in select_best_resolution(size, PINPOINTS))
    return 1 + rows * columns, processor._get_number_of_features(*size, 56, 56)
