"""Translates weights that mlx-lm does not read as transformers saves them. By their keys and shapes, never by model name."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.utils import _get_classes  # pyright: ignore[reportPrivateUsage] - what load_model itself takes

from ..vision.text_networks import vision_text_classes

Weights = dict[str, mx.array]

_EXPERTS = ("gate_up_proj", "down_proj")


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
            return own(mlx_lm_weights(weights))

        object.__setattr__(network, "sanitize", sanitize)  # not among a module's parameters
        return network

    return network_of, arguments_class


def mlx_lm_weights(weights: Weights) -> Weights:
    """Returns ``weights`` under the names and in the shapes that mlx-lm reads.

    Experts with biases (GPT-OSS's) are held packed in 4 bits on the hub, or as matrices: ``experts.gate_up_proj`` [E, H, 2 I] and
    ``experts.down_proj`` [E, I, H]. mlx-lm knows the packed ones, which are transposed and have a suffix.
    """
    return {_with_suffix(key, weights): _turned(value) if _is_matrix(key, weights) else value for key, value in weights.items()}


def _turned(experts: mx.array) -> mx.array:
    """Returns experts transposed, [E, K, N] -> [E, N, K], in memory too: a kernel would copy a view in each call."""
    return mx.contiguous(experts.swapaxes(-1, -2))


def _is_matrix(key: str, weights: Weights) -> bool:
    """Returns True for an expert's matrix that has a bias beside it."""
    return key.endswith(tuple(f"experts.{name}" for name in _EXPERTS)) and f"{key}_bias" in weights and weights[key].ndim == 3


def _with_suffix(key: str, weights: Weights) -> str:
    return f"{key}.weight" if _is_matrix(key, weights) else key
