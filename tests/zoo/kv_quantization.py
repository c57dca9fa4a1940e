"""Tries whether an architecture can decode on keys and values of eight bits, with mlx-lm's own caches and with ours.

On a wider tiny network, as a group of weights that share a scale is as wide as a tiny head, or wider.
"""

import re
from typing import Any

import mlx.core as mx
from mlx_bulk.runner.checks.padding_probe import Way, kv_refusal
from mlx_bulk.runner.core.kv_quantization import KVQuantization
from mlx_lm.models.cache import CacheList, make_prompt_cache

from .configs import CONFIGS, VOCABULARY, Config
from .networks import build

TIMES = 4
WIDER = re.compile(
    r"hidden_size|head_dim|(swa_)?v_head_dim|(swa|global|qk_rope|qk_nope|index)_head_dim|kv_lora_rank|n_embd|d_model|hidden_dim|model_dim"
    r"|kv_channels|hidden_size_per_head|block_dim|rotary_dim|sparse_index_dim"
)
GROUP = 32
MOST = 0.25  # of the logits' spread, that eight bits may change


def quantizable(name: str, way: Way) -> str:
    """`all layers`, `… of … caches`, `here alone` where mlx-lm's caches cannot, or `no`, with the reason where one is said."""
    found = _by_mlx_lm(name)
    return "here alone" if found.startswith("no") and not refused_here(name, way, 0) else found


def _by_mlx_lm(name: str) -> str:
    network = build(name, _wider(CONFIGS[name]))
    ids, step = mx.arange(20)[None], mx.array([[20]])
    plain, few = make_prompt_cache(network), make_prompt_cache(network)
    network(ids, cache=plain)
    network(ids, cache=few)
    count = [0, 0]
    few = [_quantized(cache, count) for cache in few]
    if not count[0]:
        return "no: none of its caches"
    try:
        truth, found = network(step, cache=plain)[..., :100], network(step, cache=few)[..., :100]
        change = (mx.abs(found - truth).max() / truth.astype(mx.float32).std()).item()
    except Exception as error:  # a model file may fail in any way
        return f"no: {_short(error)}"
    if change > MOST:
        return f"no: logits change by {change:.2g} of their spread"
    return "all layers" if not count[1] else f"{count[0]} of {sum(count)} caches"


def refused_here(name: str, way: Way, start: int, bits: int = 8) -> str:
    """Why batches of ours do not quantize; empty where they do."""
    return kv_refusal(build(name, _wider(CONFIGS[name])), VOCABULARY, way, KVQuantization(bits, GROUP, start))


def _short(error: Exception) -> str:
    if "incompatible function arguments" in str(error) or isinstance(error, AttributeError):
        return "its attention takes no quantized keys"
    return str(error).splitlines()[0].rstrip(".").replace("Quantized SDPA does not support attention sinks", "attention sinks")


def _quantized(cache: Any, count: list[int]) -> Any:
    """The cache with keys and values of eight bits if it can be; ``count`` of those that can, and can't."""
    if isinstance(cache, CacheList):
        cache.caches = tuple(_quantized(inner, count) for inner in cache.caches)
        return cache
    try:
        found = cache.to_quantized(group_size=GROUP, bits=8)
    except (AttributeError, NotImplementedError, ValueError):
        count[1] += 1
        return cache
    count[0] += 1
    return found


def _wider(config: Config) -> Config:
    return {name: _setting(name, value) for name, value in config.items()}


def _setting(name: str, value: Any) -> Any:
    match value:
        case dict() if name != "ffn_config":
            return _wider(value)
        case list() if name in ("short_factor", "long_factor"):
            return [entry for entry in value for _ in range(TIMES)]
        case int() if WIDER.fullmatch(name):
            return TIMES * value
        case _:
            return value
