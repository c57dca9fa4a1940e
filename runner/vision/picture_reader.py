"""Makes a text network read pictures as its checkpoint's model does: features, positions in sections, DeepStack, blocks seen both ways."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from ...configs.visible import visible
from ..caches.image_blocks import attend_in_blocks
from ..core.errors import ModelError
from ..patched_layers.deepstack import add_deepstack
from ..patched_layers.rope_layers import sections_of, turn_by_sections
from .features import FeatureCache
from .image_embedding import read_pictures_with
from .towers import open_tower
from .uncompared import UncomparedType

# Model types whose rows with pictures are held against transformers. What another does with pictures beside their features (masks,
# positions, layers of its own) would be left out without a word.
KNOWN = (
    *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "gemma3", "internvl", "mistral3", "pixtral"),
    *("idefics3", "smolvlm", "llava", "llava_next", "llava_onevision", "aya_vision"),
)

REFUSED = {
    "paligemma": "its prompts see themselves both ways, text too",
    "lfm2_vl": "its image processor needs torch",
}


def read_pictures(network: Any, folder: Path, config: dict[str, Any], dtype: mx.Dtype | None, *, unchecked: bool = False) -> FeatureCache:
    """Gives ``network`` the tower of its checkpoint; returns what keeps its features. The tower's weights are not read yet.

    config: with mlx-lm's names. dtype: see ``open_tower``. unchecked: a model type that nobody compared with transformers is taken too.
    Raises ConfigError without mlx-vlm, ModelError where the network cannot read pictures.
    """
    if (kind := visible(str(config.get("model_type")))) in REFUSED or (kind not in KNOWN and not unchecked):
        cure = f"expected one of {', '.join(KNOWN)}, or rows of text alone"
        why = REFUSED.get(kind, "how its text model takes pictures is not known")
        if kind not in REFUSED:
            cure += "; with model.unchecked_images: true it is compared with mlx-vlm at load instead, and with nothing else"
        raise ModelError(f"model.path: {folder} ({kind}) cannot read pictures here: {why}; {cure}")
    kept = FeatureCache(open_tower(folder, config, dtype))
    if kind not in KNOWN:
        kept.uncompared = UncomparedType(kind, folder, config, dtype)
    try:
        if (sections := sections_of(config)) is not None:
            turn_by_sections(network, sections)
        if levels := len(config["vision_config"].get("deepstack_visual_indexes") or ()):
            add_deepstack(network, levels)
    except ValueError as error:
        raise ModelError(f"model.path: {folder} ({kind}) cannot read pictures: {error}") from error
    if sees_pictures_both_ways(config):
        attend_in_blocks(network)
    read_pictures_with(network, kept)
    return kept


def sees_pictures_both_ways(config: dict[str, Any]) -> bool:
    """Returns whether a picture's tokens see each other in both directions: Gemma 3's do, and those of models whose config says so."""
    text = config.get("text_config") or {}
    return config.get("model_type") == "gemma3" or text.get("use_bidirectional_attention") == "vision"
