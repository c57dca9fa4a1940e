"""Tests blocks with the CPU's kernel against mlx-lm's own: weights that change, are adapted, quantized or trained."""

import copy
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten, tree_map
from mlx_bulk.runner.layers.kv_cache import make_caches
from mlx_bulk.runner.patched_layers import cpu_blocks
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.layer_patching import unpatch_layers
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..support.kernel_models import needed
from ..support.kernel_pairs import Both, close, ids

pytestmark = needed


@pytest.fixture(params=[False, True], ids=["as they lie", "packed"])
def both(request: pytest.FixtureRequest) -> Both:
    made = Both()
    context = context_of(made.networks[1])
    context.packs, context.vocabulary = request.param, 0  # its logits are computed in each call
    return made


def test_weights_that_are_replaced(both: Both):
    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(lambda network: network.update(tree_map(lambda w: w * 1.1, network.parameters())))
    both.call(ids(2, 3), caches)
    both.each(lambda network: network.model.layers[1].mlp.down_proj.update({"weight": mx.ones((64, 128)) * 0.1}))
    both.call(ids(2, 3), caches)


def test_weights_that_are_written_to_in_place(both: Both):
    def change(network: Any) -> None:
        network.model.layers[0].mlp.up_proj.weight += 0.05
        network.model.layers[1].self_attn.q_proj.weight[:8] = 0.3
        network.model.layers[1].input_layernorm.weight *= 2

    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(change)
    both.call(ids(2, 3), caches)


def test_joined_weights_that_are_written_to_or_lie_in_another_order():
    both = Both("phi3")
    context_of(both.networks[1]).packs, caches = True, both.caches(2, padded=True)
    both.call(ids(2, 8), caches)

    def change(network: Any) -> None:
        network.model.layers[0].mlp.gate_up_proj.weight += 0.05
        network.model.layers[0].self_attn.qkv_proj.weight[:8] = 0.3
        turned = network.model.layers[1].self_attn.qkv_proj
        turned.weight = mx.contiguous((0.5 * turned.weight).T).T

    both.each(change)
    both.call(ids(2, 3), caches)


def test_a_copied_network_has_weights_of_its_own(both: Both):
    caches = both.caches(1, padded=False)
    both.call(ids(1, 8), caches)
    first, both.networks = both.networks, copy.deepcopy(both.networks)
    both.each(lambda network: network.update(tree_map(lambda w: w * 1.1, network.parameters())))
    both.call(ids(1, 8), both.caches(1, padded=False))
    both.networks = first
    both.call(ids(1, 3), caches)


def test_an_adapter_put_on_and_taken_off(both: Both):
    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    before = [{name: network.model.layers[1].self_attn[name] for name in names} for network in both.networks]

    def adapt(network: Any) -> None:
        mx.random.seed(3)
        linear_to_lora_layers(network, 1, {"rank": 4, "scale": 8.0, "dropout": 0.0, "keys": [f"self_attn.{name}" for name in names]})
        for layer in network.modules():
            if "lora_b" in layer:
                layer["lora_b"] = mx.random.normal(layer["lora_b"].shape) * 0.1

    both.each(adapt)
    assert "lora_b" in both.networks[1].model.layers[1].self_attn.q_proj
    both.call(ids(2, 3), caches)  # the other layer is computed at once still
    for network, layers in zip(both.networks, before, strict=True):
        for name, layer in layers.items():
            network.model.layers[1].self_attn[name] = layer
    both.call(ids(2, 3), caches)


def test_quantized_layers_are_left_to_mlx(both: Both):
    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(lambda network: nn.quantize(network.model.layers[0].mlp, group_size=32, bits=8))
    both.call(ids(2, 3), caches)
    both.each(lambda network: nn.quantize(network, group_size=32, bits=8))
    both.call(ids(2, 3), caches, fast=False)


def test_a_training_network_has_the_gradients_of_mlx(both: Both):
    def loss(network: Any, tokens: mx.array) -> mx.array:
        return cross_entropy(network(tokens[:, :-1], cache=make_caches(network, 2, padded=False)), tokens[:, 1:]).mean()

    both.call(ids(2, 8), both.caches(2, padded=False))
    both.each(lambda network: network.train())
    both.used.clear()
    truth, found = (dict(tree_flatten(value_and_grad(each, loss)(each, ids(2, 12))[1])) for each in both.networks)
    assert not both.used
    for name, gradient in truth.items():
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=1e-4 * float(mx.abs(gradient).max()))
    both.each(lambda network: network.eval())
    both.call(ids(2, 8), both.caches(2, padded=False))


@pytest.mark.compiles
def test_compiled_functions_are_left_to_mlx(both: Both):
    both.call(ids(2, 8), both.caches(2, padded=False))
    results: list[mx.array] = []
    for each in both.networks:

        def call(tokens: mx.array, each: Any = each) -> mx.array:
            caches = make_caches(each, 2, padded=False)
            return mx.concatenate([each(tokens, cache=caches), each(tokens[:, :1], cache=caches)], axis=1)

        both.used.clear()
        results.append(mx.compile(call)(ids(2, 5)))
        assert not both.used
    close(results[1], results[0])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_has_the_bits_of_mlx(both: Both, dtype: mx.Dtype):
    both.each(lambda network: network.set_dtype(dtype))
    both.used.clear()
    truth, found = (each(ids(2, 9), cache=make_caches(each, 2, padded=True)) for each in both.networks)
    assert not both.used
    assert mx.array_equal(truth, found)
    both.each(lambda network: network.model.embed_tokens.set_dtype(mx.float32))  # float32 goes in, weights stay
    truth, found = (each(ids(2, 9), cache=make_caches(each, 2, padded=True)) for each in both.networks)
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-3 * float(mx.abs(truth).max()))


def test_a_projection_of_another_class_keeps_its_own_call(both: Both):
    class Doubled(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return 2 * super().__call__(x)

    def change(network: Any) -> None:
        for layer in network.model.layers:
            layer.self_attn.v_proj.__class__ = Doubled

    caches = both.caches(2, padded=True)
    both.call(ids(2, 8), caches)
    both.each(change)
    both.call(ids(2, 3), caches, fast=False)


def test_nothing_of_the_weights_is_held_once_the_classes_are_taken_off(both: Both):
    both.call(ids(1, 3), both.caches(1, padded=False))
    fast = both.networks[1]
    assert all(cpu_blocks.BUILT in vars(layer) for layer in fast.model.layers)
    unpatch_layers(fast)
    assert not any(cpu_blocks.BUILT in vars(layer) for layer in fast.model.layers)
    both.call(ids(1, 3), both.caches(1, padded=False), fast=False)
