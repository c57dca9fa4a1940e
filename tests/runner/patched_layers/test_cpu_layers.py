"""Tests layers with the CPU's kernels beyond their output, which test_kernel_injection.py tests."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten
from mlx_bulk.kernels import linear
from mlx_bulk.runner.layers.kernel_injection import substitute
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.cpu_layers import FastLinear
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers
from mlx_lm.models import phi3
from mlx_lm.models.mla import MultiLinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..support import tiny
from ..support.kernel_models import llama, needed, originals, put

pytestmark = needed


@pytest.fixture(autouse=True)
def as_it_came() -> Iterator[None]:
    """Each test starts and ends with mlx-lm's own."""
    with originals():
        yield


def test_a_layer_that_trains_has_gradients():
    x, layer = mx.random.normal((2, 8)), nn.Linear(8, 3)

    def gradient() -> mx.array:
        def loss(x: mx.array) -> mx.array:
            return layer(x).square().sum()

        return value_and_grad(layer, loss)(x)[1]["weight"]

    truth = gradient()
    patch_layers(layer)
    layer.train()
    assert type(layer) is FastLinear
    np.testing.assert_allclose(gradient(), truth, rtol=1e-5)


def test_parameters_stay_those_of_the_checkpoint():
    network = tiny.build("llama")
    names = [name for name, _ in tree_flatten(network.parameters())]
    put("llama")
    network(mx.array([[1, 2, 3]]))
    assert [name for name, _ in tree_flatten(network.parameters())] == names


@pytest.mark.compiles
def test_functions_that_mlx_compiles_are_computed_by_mlx():
    """A kernel of ours computes when it is called; while a function is traced there is nothing to compute."""
    network = put("llama")
    tokens = mx.array([[1, 2, 3]])
    np.testing.assert_allclose(mx.compile(network)(tokens), network(tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_projection_of_each_head_is_that_of_mlx_lm(transpose: bool, shared: bool):
    layers: Any = nn.Module()
    layers.own = MultiLinear(24, 40, 3)
    x = mx.random.normal((2, 1 if shared else 3, 5, 24 if transpose else 40))
    truth = layers.own(x, transpose)
    patch_layers(layers)
    found = layers.own(x, transpose)
    assert context_of(layers).used == {"linear"}
    assert found.shape == (2, 3, 5, 40 if transpose else 24)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-5)


def test_a_projection_wider_than_the_vocabulary_is_computed_by_the_kernel():
    wide = tiny.CONFIGS["llama"] | {"model_type": "phi3", "intermediate_size": 5 * tiny.VOCABULARY}
    network: Any = phi3.Model(phi3.ModelArgs.from_dict(wide)).eval()
    patch_layers(network)
    context_of(network).used.clear()
    states = mx.random.normal((1, 3, 64))
    layer = network.layers[0].mlp.gate_up_proj
    assert layer.weight.shape[0] > tiny.VOCABULARY
    layer(states)
    assert context_of(network).used == {"linear"}


@pytest.mark.parametrize("tied", [True, False])
def test_logits_that_are_named_and_not_read_are_not_computed(monkeypatch: pytest.MonkeyPatch, tied: bool):
    network = llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama", "tie_word_embeddings": tied})).eval()
    substitute(network, tiny.VOCABULARY, None)
    widths: list[int] = []
    right = linear.on_cpu

    def counted(x: mx.array, weight: mx.array, bias: mx.array | None = None, packing: Any = None) -> mx.array:
        widths.append(weight.shape[0])
        return right(x, weight, bias)

    monkeypatch.setattr(linear, "on_cpu", counted)
    with context_of(network).layer_by_layer():
        named = network(mx.array([[1, 2, 3]]))
    assert widths
    assert tiny.VOCABULARY not in widths
    read = Network(network)(mx.array([[1, 2, 3]]), None)
    assert tiny.VOCABULARY in widths
    np.testing.assert_allclose(named, read, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scaled", [False, True])
def test_an_adapter_on_ours_is_that_on_mlx_lm_s(scaled: bool):
    def adapted(network: Any) -> Any:
        mx.random.seed(3)
        linear_to_lora_layers(network, 2, {"rank": 4, "scale": 8.0, "dropout": 0.0})
        for _, layer in network.named_modules():
            if "lora_b" in layer:
                layer["lora_b"] = mx.random.normal(layer["lora_b"].shape) * 0.1
        return np.array(network(mx.array([[5, 6, 7]])))

    config = {**tiny.CONFIGS["llama"], "model_type": "llama"}
    if scaled:
        config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
    networks: list[Any] = []
    for _ in range(2):
        mx.random.seed(0)
        networks.append(llama.Model(llama.ModelArgs.from_dict(config)).eval())
    truth = adapted(networks[0])
    assert "linear" in substitute(networks[1], tiny.VOCABULARY, None)
    np.testing.assert_allclose(adapted(networks[1]), truth, rtol=0, atol=1e-4)
