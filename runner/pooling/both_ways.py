"""Attention both ways in mlx-lm's networks: a stand-in for a layer's cache makes the masks. No model file is copied.

rows of 4 and 2 tokens     a b c d      each token sees all of its row, or those within the window;
                           e f . .      a pad sees its row and itself, so that no sum is over nothing
"""

from typing import Any

from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from ..core.errors import ModelError

BOTH_WAYS = {"llama_bidirec"}  # model types that are both ways by their own code


def reads_both_ways(config: dict[str, Any]) -> bool:
    """Returns whether a checkpoint's attention looks ahead too."""
    text = config | (config.get("text_config") or {})
    return text.get("use_bidirectional_attention") is True or text.get("is_causal") is False or config.get("model_type") in BOTH_WAYS


def window_of(config: dict[str, Any]) -> int | None:
    """Returns the first distance at which a token is not seen in layers with a window, as transformers reads it; None without one.

    Gemma's window covers both sides: 512 are 256 each way. Others mean that many each way.
    """
    text = config | (config.get("text_config") or {})
    window = text.get("sliding_window")
    if not isinstance(window, int):
        return None
    return window // 2 + 1 if text.get("use_bidirectional_attention") is True else window + 1


def require_attention(network: Any) -> int:
    """Returns the number of layers. Raises ModelError where one of them is recurrent: it reads from left to right."""
    caches = make_prompt_cache(network)
    for cache in caches:
        if not isinstance(cache, KVCache | RotatingKVCache):
            found = f"a layer keeps a state ({type(cache).__name__}) that reads forwards alone"
            raise ModelError(f"config.json asks for attention both ways, and {found}; use another model")
    return len(caches)
