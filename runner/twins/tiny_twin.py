"""Builds a twin of a loaded model: small, of the same architecture, with random float32 weights. It has the same faults.

A twin has every kind of layer that the model has, and attention windows so short that a few tokens overrun them. So each way to
run a batch is tried on it in milliseconds. Knows architectures by their config and their layers, not by name.
"""

import copy
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_map, tree_map_with_path

from ..core.errors import first_line
from ..layers.kv_cache import make_caches
from ..layers.network import Network
from ..patched_layers.layer_patching import is_patched, patch_layers
from ..patched_layers.mended_layers import mended_alike
from .tiny_config import VOCABULARY, Config, shrink_config, shrinks

LAYERS = 48  # that a twin may have
PARAMETERS = 30_000_000
GAIN = 1.2  # of a product with a weight matrix: it enlarges its input, so that logits spread
STRAY = 0.1  # of other parameters around what they begin as: what ignores a bias of zero would be right by chance
OFF = np.array([-(2.0**-23), 0.0, 2.0**-23], np.float32)
TEXT = "text_config"  # where a config of several modalities keeps its text model's

Kind = frozenset[tuple[Any, ...]]


class NoTwin(Exception):
    """Raised where there is no twin of a model; says why."""


def twin(network: Any, config: Config) -> Any:
    """Builds the twin of ``network``, which was loaded with ``config``: as few layers as have every kind of layer.

    Raises NoTwin where the architecture cannot be built so small, or crashes on one row alone.
    """
    try:
        kinds, of = _kinds(network), len(network.layers)
        config = _complete(network, config)
    except Exception as error:  # a model file may fail in any way
        raise NoTwin(first_line(error)) from error
    reason = "it has no layers"
    for layers in range(min(2, of), min(of, LAYERS) + 1):
        try:
            small = _built(network, config, layers, of)
            if missing := kinds - _kinds(small):
                reason = f"its first {layers} layers have not all {len(kinds)} kinds of layers and caches, {len(missing)} are missing"
                continue
            _randomize(small)
            mx.eval(Network(small)(mx.array([[0, 1]]), make_caches(small, 1, padded=False)))
        except Exception as error:
            reason = first_line(error)
            continue
        return small
    raise NoTwin(reason)


def rounding_noise(network: nn.Module, vocabulary: int, tokens: int) -> float:
    """Returns how far logits of a row of so many tokens move when each parameter is off by about one rounding of float32.

    Two correct ways to compute the same logits differ by about this much, within a factor of two.
    """
    rng = np.random.default_rng(1)
    ids = mx.array(rng.integers(0, vocabulary, (1, tokens)))
    right, parameters = Network(network)(ids, make_caches(network, 1, padded=False)), network.parameters()
    mx.eval(right)

    def off(value: mx.array) -> mx.array:
        return value * (1 + mx.array(rng.choice(OFF, value.shape))) if value.dtype == mx.float32 else value

    network.update(tree_map(off, parameters))
    moved = mx.abs(Network(network)(ids, make_caches(network, 1, padded=False)) - right)
    gap = np.array(mx.where(mx.isnan(moved), 0.0, moved)).max()  # two that are -inf
    network.update(parameters)
    return float(gap)


def _complete(network: nn.Module, config: Config) -> Config:
    """Returns ``config`` with the numbers that it leaves to its model file's defaults, where they are to be made smaller."""
    text = config.get(TEXT)
    if not isinstance(text, dict):
        return _assumed(network.modules()) | config
    return _assumed([network]) | config | {TEXT: _assumed(network.modules()) | text}


def _assumed(modules: Iterable[nn.Module]) -> Config:
    """Returns the numbers to be made smaller among the settings that modules hold."""
    held = {id(value): value for module in modules for value in vars(module).values() if is_dataclass(value)}.values()
    settings = {field.name: getattr(value, field.name) for value in held for field in fields(value) if shrinks(field.name)}
    return {name: value for name, value in settings.items() if isinstance(value, int) and not isinstance(value, bool)}


def _built(network: nn.Module, config: Config, layers: int, of: int) -> Any:
    """Builds a network of ``layers`` layers; its parameters are not computed yet. Raises NoTwin where it is still large."""
    built = _initialized(network, shrink_config(config, layers, of))
    if any(int(ids.max()) >= VOCABULARY for ids in _ids(built)):  # they would be written beyond the end of its logits
        built = _initialized(network, shrink_config(config, layers, of, vocabulary=sys.maxsize))
    arrays: list[Any] = [value for _, value in tree_flatten(built.parameters())]
    size = sum(math.prod(value.shape) for value in arrays)
    if size > PARAMETERS:
        raise NoTwin(f"{size / 1e6:.0f} million parameters are left of it")
    return built


def _initialized(network: nn.Module, config: Config) -> Any:
    """Builds a network of the same class without a checkpoint, with our kernels where the first has them.

    mlx's random numbers go on as if it drew none.
    """
    model, settings = _classes(network)
    before = mx.array(_random_state()[0])
    mx.random.seed(0)
    try:
        built = model(settings.from_dict(copy.deepcopy(config)))  # some settings change the dicts that they are made of
    finally:
        _random_state()[0][:] = before
    mended_alike(built, network)
    if is_patched(network):
        patch_layers(built)
    return built


def _random_state() -> Any:
    return mx.random.state


def _classes(network: nn.Module) -> tuple[Any, Any]:
    """Returns the classes of the model and of its settings."""
    args = next((value for name in ("args", "config") if is_dataclass(value := getattr(network, name, None))), None)
    return type(network), type(args) if args is not None else sys.modules[type(network).__module__].ModelArgs


def _ids(network: nn.Module) -> Iterator[mx.array]:
    """Yields arrays of signed integers that the model file has set: token ids, perhaps."""
    for module in network.modules():
        arrays = (value for value in module.values() if isinstance(value, mx.array))
        yield from (array for array in arrays if array.dtype in (mx.int32, mx.int64) and array.size)


def _kinds(network: Any) -> set[Kind]:
    """Returns the kinds of layers and of caches that a network has, apart from their sizes."""
    caches = {frozenset([_cache_kind(cache)]) for cache in make_caches(network, 1, padded=False)}
    return caches | {_layer_kind(layer) for layer in network.layers if layer is not None}


def _cache_kind(cache: Any) -> tuple[Any, ...]:
    return (type(cache).__name__, *(_cache_kind(inner) for inner in getattr(cache, "caches", ())))


def _layer_kind(layer: nn.Module) -> Kind:
    """Returns a layer's modules by name, class and switches. Linear and embedding layers count by name: they may be quantized."""
    parts: set[tuple[Any, ...]] = set()
    modules = dict(layer.named_modules())
    weights = {path for path, module in modules.items() if re.search("Linear|Embedding", type(module).__name__)}
    for path, module in modules.items():
        name, kind = re.sub(r"\d+", "", path), type(module).__name__
        if any(
            path.startswith(f"{outer}.") for outer in weights
        ):  # an adapter around a linear layer has the layer and its own weights inside
            continue
        if path in weights:
            parts.add((name,))
            continue
        switches = ((key, _switch(value)) for key, value in vars(module).items() if not re.match("_|layer_i", key))
        parts.add((name, kind, *sorted(switch for switch in switches if switch[1] is not None)))
    return frozenset(parts)


def _switch(value: Any) -> str | None:
    """Returns what an attribute says besides a size."""
    if value is None or isinstance(value, (bool, str)):
        return re.sub(r"\d+", "", str(value))
    return str(value != 0) if isinstance(value, int) else None


def _randomize(network: nn.Module) -> None:
    rng = np.random.default_rng(0)

    def random(path: str, value: mx.array) -> mx.array:
        if not mx.issubdtype(value.dtype, mx.floating):
            return value
        noise = mx.array(rng.standard_normal(value.shape, np.float32))
        if value.ndim < 2 or not (path.endswith("weight") or _constant(value)):
            return value.astype(mx.float32) + STRAY * noise
        fan_in = math.prod(value.shape[1:]) if "conv" in path else value.shape[-1]
        return GAIN / math.sqrt(fan_in) * noise

    network.update(tree_map_with_path(random, network.parameters()))
    network.eval()
    mx.eval(network.parameters())


def _constant(value: mx.array) -> bool:
    return bool(mx.all(value == value.reshape(-1)[0]).item())
