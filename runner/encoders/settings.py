"""Reads an encoder's config.json: transformers' own defaults for what it leaves out, and refusals of what our modules do not compute."""

from collections.abc import Collection
from typing import Any

from mlx import nn

from ..core.errors import ModelError

Config = dict[str, Any]

# The names of transformers' ACT2FN, and the layer that computes each: three of them are one formula.
ACTIVATIONS: dict[str, tuple[type[nn.Module], dict[str, str]]] = {
    "gelu": (nn.GELU, {}),
    "gelu_new": (nn.GELU, {"approx": "tanh"}),
    "gelu_pytorch_tanh": (nn.GELU, {"approx": "tanh"}),
    "gelu_fast": (nn.GELU, {"approx": "tanh"}),
    "quick_gelu": (nn.GELU, {"approx": "fast"}),
    "relu": (nn.ReLU, {}),
    "silu": (nn.SiLU, {}),
    "swish": (nn.SiLU, {}),
}


def with_defaults(config: Config, defaults: Config) -> Config:
    """Returns ``config`` with ``defaults`` for what is missing or null."""
    return defaults | {name: value for name, value in config.items() if value is not None}


def tower_settings(config: Config, part: str, defaults: Config) -> Config:
    """Returns the settings of one of a model's two towers, with its defaults. part: text or vision.

    What ``text_config_dict`` says counts more than ``text_config``, as in transformers, which wrote both once.
    """
    settings: Config = dict(config.get(f"{part}_config") or {})
    if older := config.get(f"{part}_config_dict"):
        settings |= defaults | older
    return with_defaults(settings, defaults)


def check_setting(config: Config, name: str, served: Collection[Any], default: Any = None) -> None:
    """Raises ModelError where ``config`` sets ``name`` to something that is not among ``served``. Missing or null is ``default``."""
    value = config.get(name)
    value = default if value is None else value
    if value not in served:
        one_of = " or ".join(repr(each) for each in served)
        kind = config.get("model_type")
        raise ModelError(f"config.json: {name} is {value!r}; mlx-bulk computes {kind} only with {one_of}, so it cannot use this checkpoint")


def activation(name: str) -> nn.Module:
    """Returns the layer for an activation as config.json names it; raises ModelError for an unknown one."""
    if name not in ACTIVATIONS:
        raise ModelError(
            f"config.json: the activation is {name!r}; mlx-bulk computes encoders only with {', '.join(ACTIVATIONS)}, "
            "so it cannot use this checkpoint"
        )
    layer, options = ACTIVATIONS[name]
    return layer(**options)


def head_width(config: Config, width: str, heads: str) -> int:
    """Returns the numbers of one attention head; raises ModelError where the heads do not share the width evenly."""
    if config[heads] < 1 or config[width] % config[heads]:
        raise ModelError(f"config.json: {width} is {config[width]}, which is no multiple of {heads} {config[heads]}; fetch the model anew")
    return config[width] // config[heads]
