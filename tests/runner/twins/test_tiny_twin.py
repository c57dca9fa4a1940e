"""Tests twins: small, with every kind of layer of the model, the same each time; or a reason why there is none."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.twins import tiny_twin as twins
from mlx_bulk.runner.twins.tiny_config import VOCABULARY
from mlx_bulk.runner.twins.tiny_twin import NoTwin, rounding_noise, twin
from mlx_lm.models import llama
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..support import tiny
from ..support.released_configs import CONFIGS, uncomputed

LAYERS = {"gemma-3-27b": 6, "DeepSeek-V3": 4, "Nemotron-H-8B": 8, "Jamba-v0.1": 5, "granite-4.0-h-small": 6, "Llama-4-Scout": 4}
LLAMA = tiny.CONFIGS["llama"] | {"model_type": "llama"}


def parameters(network: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(network.parameters()))


def classes_of(network: Any) -> set[str]:
    """Of all that its layers are made of, and of its caches."""
    modules = {type(module).__name__ for layer in network.layers for module in layer.modules()}
    return modules | {type(cache).__name__ for cache in make_caches(network, 1, padded=False)}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_released_has_a_small_twin_with_every_class_of_layer(name: str):
    network = uncomputed(CONFIGS[name])
    small = twin(network, CONFIGS[name])
    arrays = parameters(small)
    assert sum(math.prod(a.shape) for a in arrays.values()) < 6_000_000
    assert {a.dtype for a in arrays.values() if mx.issubdtype(a.dtype, mx.floating)} == {mx.float32}
    logits = small(mx.array([[1, 2, 3]]), cache=make_caches(small, 1, padded=False))
    assert logits.shape == (1, 3, VOCABULARY)
    assert np.array(logits).std() > 0.05  # scaled down, as the model says, in some of them
    assert len(small.layers) == LAYERS.get(name, len(small.layers))
    assert classes_of(small) == classes_of(network)


def test_layers_that_share_keys_and_values_are_kept_of_each_kind():
    small = twin(uncomputed(CONFIGS["gemma-3n-E4B"]), CONFIGS["gemma-3n-E4B"])
    kinds = Counter((layer.self_attn.is_kv_shared_layer, layer.self_attn.is_sliding) for layer in small.layers)
    assert len(kinds) == 4


def test_it_is_the_same_each_time_and_no_parameter_is_at_rest():
    network = uncomputed(CONFIGS["gpt-oss-20b"])
    first, second = (parameters(twin(network, CONFIGS["gpt-oss-20b"])) for _ in range(2))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert mx.array_equal(value, second[name])
        assert value.size == 1 or np.array(value).std() > 0, name  # sinks and biases begin as zeros


@pytest.mark.parametrize("change", ["quantized", "adapted"])
def test_a_quantized_or_adapted_model_has_the_same_kinds_of_layers(change: str):
    network = tiny.fresh("qwen3_moe")
    if change == "quantized":
        nn.quantize(network, group_size=32, bits=4)
    else:
        linear_to_lora_layers(network, 4, {"rank": 4, "scale": 1.0, "dropout": 0.0})
    assert len(twin(network, tiny.CONFIGS["qwen3_moe"] | {"model_type": "qwen3_moe"}).layers) == 2


class WritesIds(llama.Model):
    """Takes ids of its tokenizer for granted."""

    def __init__(self, args: llama.ModelArgs):
        super().__init__(args)
        self._never = mx.array([200])

    def __call__(self, *inputs: Any, **more: Any) -> mx.array:
        logits = super().__call__(*inputs, **more)
        logits[..., self._never] = -float("inf")
        return logits


def test_a_vocabulary_that_the_model_file_counts_on_stays():
    small = twin(WritesIds(llama.ModelArgs.from_dict(LLAMA)), LLAMA)
    assert small(mx.array([[0]])).shape[-1] == tiny.VOCABULARY


class OneSize(llama.Model):
    def __init__(self, args: llama.ModelArgs):
        super().__init__(args)
        if args.intermediate_size != 128:
            raise ValueError("kernels for 128 alone\nsecond line")


class Crashing(llama.Model):
    def __call__(self, *inputs: Any, **more: Any) -> mx.array:
        raise NotImplementedError


class LastOneDiffers(llama.Model):
    def __init__(self, args: llama.ModelArgs):
        super().__init__(args)
        self.layers[-1].self_attn.bidirectional = args.num_hidden_layers == 60


@dataclass
class HugeArgs(llama.ModelArgs):
    elsewhere: int = 8192


class Huge(llama.Model):
    def __init__(self, args: HugeArgs):
        super().__init__(args)
        self.table = nn.Linear(args.elsewhere, args.elsewhere)


@pytest.mark.parametrize(
    ("model", "settings", "more", "reason"),
    [
        (OneSize, llama.ModelArgs, {}, "kernels for 128 alone"),
        (Crashing, llama.ModelArgs, {}, "NotImplementedError"),
        pytest.param(
            LastOneDiffers,
            llama.ModelArgs,
            {"num_hidden_layers": 60},
            "its first 48 layers have not all 3 kinds of layers and caches, 1 are missing",
            marks=pytest.mark.slow,
        ),
        pytest.param(Huge, HugeArgs, {}, "67 million parameters are left of it", marks=pytest.mark.slow),
    ],
)
def test_a_model_without_a_twin_gives_the_reason(model: Any, settings: Any, more: dict[str, Any], reason: str):
    config = LLAMA | more
    with pytest.raises(NoTwin, match=reason):
        twin(model(settings.from_dict(config)), config)


def test_an_object_that_is_no_network_has_no_twin():
    with pytest.raises(NoTwin):
        twin(tiny.random_chain(8), LLAMA)


def test_rounding_is_about_what_two_ways_to_compute_the_same_differ_by():
    small = twin(tiny.build("llama"), LLAMA)
    ids = mx.array([list(range(24))])
    caches = make_caches(small, 1, padded=False)
    by_steps = mx.concatenate([small(ids[:, i : i + 1], cache=caches) for i in range(24)], axis=1)
    before = parameters(small)
    noise = rounding_noise(small, VOCABULARY, 24)
    assert 0.5 * np.abs(np.array(by_steps - small(ids))).max() < noise < 1e-3
    assert all(mx.array_equal(value, before[name]) for name, value in parameters(small).items())


def test_random_numbers_go_on_as_if_nothing_had_been_built():
    mx.random.seed(3)
    expected = mx.random.normal((4,))
    mx.random.seed(3)
    twin(tiny.build("llama"), LLAMA)
    assert mx.array_equal(mx.random.normal((4,)), expected)


def test_it_is_as_small_as_the_kinds_of_layers_allow(monkeypatch: pytest.MonkeyPatch):
    built: list[int] = []
    original = twins._built  # pyright: ignore[reportPrivateUsage]

    def counting(network: Any, config: Any, layers: int, of: int) -> Any:
        built.append(layers)
        return original(network, config, layers, of)

    monkeypatch.setattr(twins, "_built", counting)
    small = twin(tiny.build("gemma3_text"), tiny.CONFIGS["gemma3_text"] | {"model_type": "gemma3_text"})
    assert len(small.layers) == 2  # one slides, one does not
    assert built == [2]
