"""Tests that projections of one input are one product, on networks of mlx-lm's as they are on a GPU."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.models.adapters import Adapters
from mlx_bulk.runner.patched_layers import joined_projections
from mlx_bulk.runner.patched_layers.joined_projections import has_joined, join_projections, separate_projections
from mlx_lm.tuner.utils import linear_to_lora_layers

from ...adapters import write_adapter
from ...zoo import networks
from ...zoo.configs import CONFIGS
from ..support import tiny

IDS = mx.array([[5, 9, 2, 7], [1, 1, 8, 3]])


def joined(network: Any) -> Any:
    join_projections(network, lambda: network(IDS))
    return network


def plain(name: str, bits: int | None = None) -> Any:
    """A network with mlx-lm's own layers."""
    network = tiny.as_it_came(name) if name in tiny.CONFIGS else networks.build(name, CONFIGS[name])
    if bits is not None:
        nn.quantize(network, 32, bits, class_predicate=lambda _, layer: type(layer) is nn.Linear)
    return network


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A network as it is loaded on CUDA."""
    network = plain("llama")
    monkeypatch.setattr(kernel_injection, "device_name", lambda: "cuda")
    assert kernel_injection.substitute(network, tiny.VOCABULARY, None) == ("attention", "joined projections")
    yield network
    kernel_injection.restore(network)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of the outputs of projections that computed a product of their own."""
    seen: list[int] = []
    for kind in (nn.Linear, nn.QuantizedLinear):
        own: Any = kind.__call__

        def call(self: Any, x: mx.array, own: Any = own) -> mx.array:
            out: mx.array = own(self, x)
            seen.append(out.shape[-1])
            return out

        monkeypatch.setattr(kind, "__call__", call)
    return seen


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "deepseek_v3"])
def test_logits_are_those_of_the_projections_apart(name: str, bits: int | None, products: list[int]):
    network = plain(name, bits)
    truth, apart = network(IDS), len(products)
    mx.eval(truth)
    joined(network)
    products.clear()
    np.testing.assert_allclose(network(IDS), truth, atol=1e-5)
    assert has_joined(network)
    assert len(products) < apart


def test_a_block_has_four_products_in_place_of_seven(products: list[int]):
    network = plain("llama")
    network(IDS)
    assert len(products) == 7 * len(network.layers) + 1  # and the head
    joined(network)
    products.clear()
    network(IDS)
    assert len(products) == 2 * len(network.layers) + 1


def test_calls_of_many_tokens_have_a_product_for_each_projection(products: list[int], monkeypatch: pytest.MonkeyPatch):
    network = joined(plain("llama"))
    monkeypatch.setattr(joined_projections, "MOST_TOKENS", IDS.size - 1)
    products.clear()
    truth = plain("llama")(IDS)
    whole, found = len(products), network(IDS)
    assert len(products) == 2 * whole
    np.testing.assert_allclose(found, truth, atol=1e-5)


def test_arrays_that_would_not_be_aligned_stay_where_they_are():
    module = Crossed()
    x = mx.zeros((1, 8))
    module.gate_proj, module.up_proj = nn.Linear(8, 6), nn.Linear(8, 6)  # biases of 24 bytes
    join_projections(module, lambda: module(x))
    assert not has_joined(module)


def test_weights_keep_their_bits_and_take_no_more_memory():
    network = plain("qwen2")
    before = {name: np.array(array) for name, array in tree_flatten(network.parameters())}
    held = mx.get_active_memory()
    joined(network)
    after = dict(tree_flatten(network.parameters()))
    assert list(after) == list(before)
    assert all(np.array_equal(after[name], before[name]) for name in before)
    assert mx.get_active_memory() <= held + 4096


def test_a_projection_with_a_new_weight_computes_its_own_product(products: list[int]):
    network = joined(plain("llama"))
    first = network.layers[0].self_attn
    new = {"k_proj": mx.random.normal(first.k_proj.weight.shape)}
    network.load_weights([(f"model.layers.0.self_attn.{name}.weight", array) for name, array in new.items()], strict=False)
    twin = plain("llama")
    twin.load_weights(list(tree_flatten(network.parameters())))
    truth = twin(IDS)
    products.clear()
    np.testing.assert_allclose(network(IDS), truth, atol=1e-5)
    assert first.k_proj.weight.shape[0] in products


class Crossed(nn.Module):
    """Attention's projections of which one reads something else."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))
        self.gate_proj, self.up_proj = nn.Linear(8, 8), nn.Linear(8, 8)

    def __call__(self, x: mx.array) -> mx.array:
        y = self.q_proj(x) + self.k_proj(2 * x) * self.v_proj(x)
        return self.gate_proj(y) * self.up_proj(y)


def test_projections_of_unlike_inputs_stay_apart():
    module = Crossed()
    x = mx.random.normal((3, 8))
    truth = module(x)
    mx.eval(truth)
    join_projections(module, lambda: module(x))
    assert type(module.k_proj) is nn.Linear
    assert type(module.gate_proj) is not nn.Linear
    np.testing.assert_allclose(module(x), truth, atol=1e-6)


def test_a_network_that_cannot_be_called_stays_as_it_is():
    module = Crossed()
    join_projections(module, lambda: module(mx.zeros((2, 7))))
    assert not has_joined(module)
    assert {type(layer) for layer in module.leaf_modules().values()} == {nn.Linear}


def test_projections_of_unlike_precision_or_kind_are_no_group():
    module = Crossed()
    module.v_proj.set_dtype(mx.bfloat16)
    module.up_proj = nn.Linear(8, 8, bias=False)
    x = mx.zeros((1, 8))
    join_projections(
        module, lambda: [layer(x) for layer in (module.q_proj, module.k_proj, module.v_proj, module.gate_proj, module.up_proj)]
    )
    assert not has_joined(module)


def test_the_same_array_twice_is_multiplied_twice():
    module = Crossed()
    x = mx.random.normal((2, 8))
    join_projections(module, lambda: module(x))
    assert has_joined(module)
    first, second = module.gate_proj(x), module.gate_proj(x)
    np.testing.assert_array_equal(first, second)


def test_a_layer_that_stands_in_several_places_is_joined_once():
    network = plain("llama")
    network.model.layers = [network.layers[0], network.layers[0]]
    truth = network(IDS)
    mx.eval(truth)
    joined(network)
    assert has_joined(network)
    np.testing.assert_allclose(network(IDS), truth, atol=1e-5)
    module = Crossed()
    module.up_proj = module.gate_proj
    join_projections(module, lambda: module(mx.zeros((1, 8))))
    assert not has_joined(module)


def test_a_copy_is_apart_and_a_group_may_be_separated():
    network = joined(plain("llama"))
    truth = network(IDS)
    twin = deepcopy(network)
    assert not has_joined(twin)
    np.testing.assert_allclose(twin(IDS), truth, atol=1e-5)
    separate_projections(network)
    assert not has_joined(network)
    assert {type(layer) for layer in network.modules() if isinstance(layer, nn.Linear)} == {nn.Linear}
    np.testing.assert_allclose(network(IDS), truth, atol=1e-5)


def test_adapters_go_on_joined_projections():
    networks = joined(plain("llama")), plain("llama")
    for network in networks:
        mx.random.seed(3)
        linear_to_lora_layers(network, len(network.layers), {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]})
        for name, layer in network.named_modules():
            if name.endswith("q_proj"):
                layer.lora_b = mx.ones(layer.lora_b.shape)
    np.testing.assert_allclose(networks[0](IDS), networks[1](IDS), atol=1e-5)


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("dtype", [None, mx.float32])
def test_putting_an_adapter_on_separates_them_for_good(on_cuda: Any, tmp_path: Path, dtype: mx.Dtype | None, kind: str):
    network = on_cuda
    truth = np.array(network(IDS))
    adapters = Adapters(network, dtype, lambda: "", lambda _: plain("llama"))
    folder = write_adapter(tmp_path, plain("llama"), kind, keys=("self_attn.q_proj",))
    for _ in range(2):
        adapters.put_on(folder)
        assert not has_joined(network)
        assert np.abs(np.array(network(IDS)) - truth).max() > 1e-3
        with adapters.off():
            np.testing.assert_allclose(network(IDS), truth, atol=1e-5)


def test_a_caller_that_trains_in_between_has_them_apart(on_cuda: Any):
    truth = np.array(on_cuda(IDS))
    inside = kernel_injection.only_inside([on_cuda])
    for _ in range(2):
        assert not has_joined(on_cuda)
        with inside():
            assert not has_joined(on_cuda)
            np.testing.assert_allclose(on_cuda(IDS), truth, atol=1e-5)


def test_gradients_reach_projections_in_training():
    network = joined(plain("llama"))
    network.train()
    grads = value_and_grad(network, lambda: network(IDS).logsumexp())()[1]
    found: list[Any] = [array for name, array in tree_flatten(grads) if "k_proj.weight" in name]
    assert len(found) == len(network.layers)
    assert all(np.abs(np.array(array)).sum() > 0 for array in found)


def test_on_cuda_a_network_gets_joined_projections_and_gives_them_back(on_cuda: Any):
    assert has_joined(on_cuda)
    kernel_injection.restore(on_cuda)
    assert not has_joined(on_cuda)
