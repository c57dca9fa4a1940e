"""Tests layers that keep quantized weights as they are: with our kernels they compute what the same weights as float32 do."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_map
from mlx_bulk.kernels import linear
from mlx_bulk.runner.layers.kernel_injection import substitute
from mlx_bulk.runner.layers.lm_head import Head
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_bulk.runner.patched_layers.cpu_blocks import serves
from mlx_bulk.runner.patched_layers.cpu_layers import packing_of
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers
from mlx_lm.utils import dequantize_model

from ...rounded_numbers import rounded
from ..support import kernel_models, tiny
from ..support.kernel_pairs import KINDS, QUICK, Both, close, ids, network

pytestmark = kernel_models.needed


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    with kernel_models.originals():
        yield


def fits(_: str, layer: Any) -> bool:
    return hasattr(layer, "to_quantized") and layer.weight.shape[-1] % 32 == 0


def quantized(kind: str = "llama", bits: int = 4, **settings: Any) -> Any:
    """A tiny network whose matrices are all quantized where their sizes allow."""
    made = network(kind)
    nn.quantize(made, 32, bits, class_predicate=fits, **settings)
    return made.eval()


def pair(kind: str = "llama", bits: int = 4) -> Both:
    """mlx-lm's network with the quantized weights as float32, and ours with the weights as they are."""
    both = Both(kind)
    both.networks[:] = [dequantize_model(quantized(kind, bits)).eval(), quantized(kind, bits)]
    patch_layers(both.networks[1])
    return both


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS])
def test_whole_blocks_of_quantized_weights(kind: str, bits: int):
    both = pair(kind, bits)
    assert any(isinstance(layer, nn.QuantizedLinear) for layer in both.networks[1].model.layers[0].modules())
    caches = both.caches(3, padded=True)
    for n in (40, 1, 9):
        both.call(ids(3, n, n), caches)
    both.steps(3, 5, caches)


def test_layers_one_by_one():
    both = pair()
    with context_of(both.networks[1]).layer_by_layer():
        both.call(ids(2, 12), both.caches(2, padded=False), fast=False)
    assert "linear" in both.used


@pytest.mark.parametrize("packs", [False, True])
def test_blocks_of_which_some_matrices_are_quantized(packs: bool):
    """Conversions leave out layers, and give others more bits."""
    made = [network(), network()]
    for each in made:
        each.update(tree_map(rounded, each.parameters()))
        nn.quantize(each, 32, 4, class_predicate=lambda path, layer: {"bits": 6, "group_size": 64} if "up_proj" in path else "down" in path)
        each.eval()
    patch_layers(made[1])
    context_of(made[1]).packs = packs
    assert serves(made[1].model.layers[0])
    gate = made[1].model.layers[0].mlp.gate_proj
    assert (packing_of(gate, gate.weight) is not None) == packs
    close(made[1](ids(2, 9)), dequantize_model(made[0])(ids(2, 9)))


def test_other_modes_are_left_to_mlx():
    made, own = (quantized(mode="mxfp4") for _ in range(2))
    patch_layers(made)
    assert not serves(made.model.layers[0])
    close(made(ids(2, 9)), own(ids(2, 9)))


def test_no_product_of_mlx_takes_quantized_weights_at_load(monkeypatch: pytest.MonkeyPatch):
    """In a model of billions one takes a minute, and the trial makes many."""
    made = quantized()

    def slow(*_: Any, **__: Any) -> mx.array:
        raise AssertionError("mlx's product was called")

    monkeypatch.setattr(mx, "quantized_matmul", slow)
    assert substitute(made, tiny.VOCABULARY, None) == kernel_models.USED["llama"]


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_quantized_experts(name: str):
    made, own = tiny.fresh(name), tiny.fresh(name)
    for each in (made, own):
        nn.quantize(each, 32, 4, class_predicate=fits)
        each.eval()
    assert "experts" in substitute(made, tiny.VOCABULARY, None)
    assert any(type(layer).__name__ == "FastQuantizedSwitchLinear" for layer in made.modules())
    found, truth = (np.array(each(ids(2, 9))) for each in (made, dequantize_model(own)))
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-4 * float(truth.std()))


@pytest.mark.parametrize("tied", [False, True])
def test_a_quantized_head_is_a_product(tied: bool):
    config = {**tiny.CONFIGS["llama"], "model_type": "llama", "tie_word_embeddings": tied}
    made = kernel_models.llama.Model(kernel_models.llama.ModelArgs.from_dict(config)).eval()
    nn.quantize(made, group_size=32, bits=8)
    assert substitute(made, tiny.VOCABULARY, None) == kernel_models.USED["llama"]
    states = mx.random.normal((5, 64))
    found = Head(made).product(states)
    assert found is not None
    logits = linear.reference(found.x, found.weight, found.bias)
    np.testing.assert_allclose(np.array(logits), np.array(Head(made).logits(states)), rtol=0, atol=3e-5)
