"""Tests kernels that are in a network for the length of a block, and what they hold of its weights in between."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_map
from mlx_bulk.runner.layers import kernel_injection
from mlx_bulk.runner.layers.kernel_injection import substitute
from mlx_bulk.runner.patched_layers import cpu_layers
from mlx_bulk.runner.patched_layers.call_context import BUILT
from mlx_lm.models import activations

from ...rounded_numbers import rounded
from ..support import tiny
from ..support.kernel_models import llama, needed, originals, put

pytestmark = needed


@pytest.fixture(autouse=True)
def as_it_came() -> Iterator[None]:
    """Each test starts and ends with mlx-lm's own."""
    with originals():
        yield


def test_only_inside_a_block():
    network = put("llama")
    inside = kernel_injection.only_inside([network])
    layer = network.model.layers[0].mlp.up_proj
    assert type(layer) is nn.Linear
    with inside():
        assert type(layer) is cpu_layers.FastLinear
        assert llama.swiglu is not activations.swiglu
    assert type(layer) is nn.Linear
    assert llama.swiglu is activations.swiglu


def test_weights_stay_packed_between_blocks():
    network = llama.Model(llama.ModelArgs.from_dict({**tiny.CONFIGS["llama"], "model_type": "llama"})).eval()
    network.update(tree_map(rounded, network.parameters()))  # so that tiles take them packed
    substitute(network, tiny.VOCABULARY, None, packs=True)
    layer, held = network.model.layers[0].mlp.up_proj, list[Any]()
    inside = kernel_injection.only_inside([network])
    for _ in range(2):
        with inside():
            network(mx.array([[1, 2, 3]]))
            held.append(layer.__dict__[BUILT])
    assert held[0] is held[1]
    layer.weight = layer.weight * 2
    with inside():
        network(mx.array([[1, 2, 3]]))
        assert layer.__dict__[BUILT] is not held[0]
