"""A tiny random configuration for every architecture in mlx-lm: plain dicts, as a config.json would say it.

Each has every kind of layer that its architecture can have; windows and chunks are shorter than a test's rows. Knows nothing of
what is done with them.
"""

from . import dense, latent, moe, recurrent, windows
from .dense import VOCABULARY, Config

__all__ = ["CANNOT", "CONFIGS", "PARTS", "REFUSED", "VOCABULARY", "Config"]

_LISTS = (dense.CONFIGS, moe.CONFIGS, latent.CONFIGS, windows.CONFIGS, recurrent.CONFIGS)

# By the name of the file in mlx_lm.models.
CONFIGS: dict[str, Config] = {name: {"model_type": name} | config for part in _LISTS for name, config in sorted(part.items())}

# Files that define a model of which no tiny one can be built here, and why.
CANNOT: dict[str, str] = {
    "bitnet": "its linear layers are a Metal kernel alone (bitlinear_layers.py)",
    "olmo": "its attention adds the mask, which is a word (`causal`), to its scores: a crash on any prompt",
    "muse_spark": "its attention is a Metal kernel alone (qk_norm_rope)",
}

# Their tiny configurations, by which they are tried all the same.
REFUSED: dict[str, Config] = {"bitnet": dense.LLAMA, "muse_spark": windows.MUSE_SPARK, "olmo": dense.BASE}

# Files that define no model of their own, but what those above share.
PARTS = frozenset(
    [
        "__init__",
        "activations",
        "base",
        "bitlinear_layers",
        "cache",
        "gated_delta",
        "mla",
        "pipeline",
        "rope_utils",
        "ssm",
        "switch_layers",
    ],
)
