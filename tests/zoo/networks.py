"""Networks of the zoo: built from a configuration with random weights, the same each time, and saved as a checkpoint.

No parameter stays at the constant that an initialisation leaves some at (sinks, biases, gains): what ignores it would be right by
chance. Weights are large enough for logprobs to spread by more than 1, and small enough for rounding to stay below the bounds.
"""

import copy
import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import quantize_model

from .configs import Config

GAIN = 1.5  # of a product with a weight matrix: the root mean square of what comes out, over that of what goes in
GAINS = {  # of those that are steeper: what rounding does is then as far below the bounds as it is for the others
    "bailing_moe_v3": 1.2,
    "gemma": 1.0,  # their norms add one to their weights, which begin as one
    "gemma2": 1.0,
    "gemma3": 1.2,
    "gemma3_text": 1.2,
    "kimi_k25": 1.2,
    "kimi_k3": 1.1,
    "kimi_vl": 1.2,
    "longcat_flash": 1.2,
    "longcat_flash_ngram": 1.2,
    "nemotron": 1.2,
    "qwen3_5_moe": 1.2,
    "recurrent_gemma": 1.1,
}
STRAY = 0.1  # of other parameters, around what they are initialised to


def build(name: str, config: Config) -> Any:
    """A float32 network of the model file ``name`` with random weights."""
    module = import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    network = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))  # some settings change the dicts that they are made of
    gain = GAINS.get(name, GAIN)
    network.update(tree_map_with_path(lambda path, value: _random(path, value, gain), network.parameters()))
    network.eval()
    mx.eval(network.parameters())
    return network


def _random(path: str, value: mx.array, gain: float) -> mx.array:
    if value.dtype == mx.uint32:  # packed weights
        return (
            mx.random.randint(0, 1 << 16, value.shape).astype(mx.uint32)
            | mx.random.randint(0, 1 << 16, value.shape).astype(mx.uint32) << 16
        )
    if path.endswith(".signs"):
        return mx.where(mx.random.uniform(shape=value.shape) < 0.5, -1.0, 1.0)
    if path.endswith(".scales"):  # of packed weights of two bits, which are -1.5 … 1.5 of them with these biases
        return mx.full(value.shape, 0.05)
    if path.endswith(".biases"):
        return mx.full(value.shape, -0.075)
    if not mx.issubdtype(value.dtype, mx.floating):
        return value
    noise = mx.random.normal(value.shape)
    constant = value.size > 1 and mx.all(value == value.reshape(-1)[0]).item()
    if value.ndim > 1 and (path.endswith("weight") or constant):
        fan_in = math.prod(value.shape[1:]) if "conv" in path else value.shape[-1]
        return gain / math.sqrt(fan_in) * noise
    return value.astype(mx.float32) + STRAY * noise


def save(network: Any, config: Config, folder: Path) -> Path:
    """Writes a checkpoint in mlx-lm's format."""
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def quantized(network: Any, config: Config, bits: int) -> tuple[Any, Config]:
    """The network with weights of ``bits`` bits wherever mlx-lm can, and the config that says so. The network is changed."""
    return quantize_model(network, copy.deepcopy(config), group_size=32, bits=bits)
