"""Translates weights that mlx-lm does not read as transformers saves them.

Most are recognized by their keys and shapes, and by what mlx-lm's file expects; two families by their type (``_STACKED``, ``_TURNED``).
"""

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.utils import _get_classes  # pyright: ignore[reportPrivateUsage] - what load_model itself takes

from ..vision.text_networks import vision_text_classes

Weights = dict[str, mx.array]

_EXPERTS = ("gate_up_proj", "down_proj")
_ONE_EXPERT = re.compile(r"(.*mlp\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_STACKED = ("qwen3_5_moe", "qwen3_5_moe_text")  # whose files in mlx-lm read experts stacked, as on the hub; transformers 5 saves each
_TURNED = ("qwen3_vl_moe",)  # whose files read them as on the hub, [E, H, 2 I] and [E, I, H]; transformers 5 saves them the other way


def mlx_lm_classes(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """Returns what mlx-lm's ``load_model`` makes a network and its arguments of; the network reads weights by ``mlx_lm_weights`` first."""
    network_class, arguments_class = vision_text_classes(config) or _get_classes(config)

    def network_of(arguments: Any) -> Any:
        network = network_class(arguments)
        own = getattr(network, "sanitize", None)
        if own is None:
            return network

        def sanitize(weights: Weights) -> Weights:
            object.__delattr__(network, "sanitize")  # the class's own is there again
            return own(mlx_lm_weights(weights, str(config.get("model_type"))))

        object.__setattr__(network, "sanitize", sanitize)  # not among a module's parameters
        return network

    return network_of, arguments_class


def mlx_lm_weights(weights: Weights, kind: str = "") -> Weights:
    """Returns ``weights`` under the names and in the shapes that mlx-lm reads.

    Experts with biases (GPT-OSS's) are held packed in 4 bits on the hub, or as matrices: ``experts.gate_up_proj`` [E, H, 2 I] and
    ``experts.down_proj`` [E, I, H]. mlx-lm knows the packed ones, which are transposed and have a suffix. kind: the model type.
    """
    if kind in _STACKED:
        weights = _stacked(weights)
    if kind in _TURNED:
        weights = {key: _turned(value) if _is_crosswise(key, weights) else value for key, value in weights.items()}
    return {_with_suffix(key, weights): _turned(value) if _is_matrix(key, weights) else value for key, value in weights.items()}


def _stacked(weights: Weights) -> Weights:
    """Returns ``weights`` with each layer's experts in two arrays: ``gate_up_proj`` [E, 2 I, H] and ``down_proj`` [E, H, I]."""
    found = {key: match for key in weights if (match := _ONE_EXPERT.fullmatch(key))}
    kept = {key: value for key, value in weights.items() if key not in found}
    for layer in dict.fromkeys(match[1] for match in found.values()):
        experts = sorted(int(match[2]) for match in found.values() if match[1] == layer and match[3] == "down")
        gate, up, down = (mx.stack([weights[f"{layer}.{i}.{name}_proj.weight"] for i in experts]) for name in ("gate", "up", "down"))
        kept |= {f"{layer}.gate_up_proj": mx.concatenate([gate, up], axis=1), f"{layer}.down_proj": down}
    return kept


def _is_crosswise(key: str, weights: Weights) -> bool:
    """Returns True for experts [E, 2 I, H] and [E, H, I]. Shapes tell: I is half of the one's columns, or of the other's rows."""
    layer, _, name = key.rpartition(".")
    if not layer.endswith("mlp.experts") or name not in _EXPERTS or f"{layer}.gate_up_proj" not in weights:
        return False
    (_, rows, columns), down = weights[f"{layer}.gate_up_proj"].shape, weights[f"{layer}.down_proj"].shape
    return (rows, columns) == (2 * down[2], down[1])


def _turned(experts: mx.array) -> mx.array:
    """Returns experts transposed, [E, K, N] -> [E, N, K], in memory too: a kernel would copy a view in each call."""
    return mx.contiguous(experts.swapaxes(-1, -2))


def _is_matrix(key: str, weights: Weights) -> bool:
    """Returns True for an expert's matrix that has a bias beside it."""
    return key.endswith(tuple(f"experts.{name}" for name in _EXPERTS)) and f"{key}_bias" in weights and weights[key].ndim == 3


def _with_suffix(key: str, weights: Weights) -> str:
    return f"{key}.weight" if _is_matrix(key, weights) else key
