"""Tests embeddings on a CPU: few ids are looked up at once, with the numbers of mlx's look-up, and scaled once."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.nn.utils import value_and_grad
from mlx_bulk.runner.patched_layers.cpu_embeddings import FEW_IDS, FastEmbedding, FastScaledEmbedding
from mlx_bulk.runner.patched_layers.layer_patching import patch_layers
from mlx_bulk.runner.patched_layers.mended_layers import ScaledEmbedding

from ..support.kernel_models import needed

pytestmark = needed


def patched(scaled: bool) -> Any:
    layer: Any = nn.Module()
    layer.own = ScaledEmbedding(11, 6) if scaled else nn.Embedding(11, 6)
    if scaled:
        object.__setattr__(layer.own, "factor", 3.0)
    patch_layers(layer)
    assert type(layer.own) is (FastScaledEmbedding if scaled else FastEmbedding)
    return layer.own


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("shape", [(1,), (4, 1), (2, 3, 5), (0,), (FEW_IDS,), (FEW_IDS + 1,)])
def test_vectors_are_those_of_mlx(shape: tuple[int, ...], scaled: bool):
    layer = patched(scaled)
    ids = mx.random.randint(0, 11, shape)
    for weight in (layer.weight, layer.weight.T[:, ::-1].T, layer.weight.astype(mx.float16)):
        layer.weight = weight
        found = layer(ids)
        assert (found.dtype, found.shape) == (weight.dtype, (*shape, 6))
        np.testing.assert_array_equal(found, weight[ids] * (3.0 if scaled else 1.0))


def test_vectors_stay_when_the_weight_changes():
    layer = patched(scaled=False)
    found, truth = layer(mx.array([3])), np.array(layer.weight[3:4])
    layer.weight[3] = 0.0
    np.testing.assert_array_equal(found, truth)
    assert not np.array(layer(mx.array([3]))).any()


@pytest.mark.compiles
def test_traced_ids_are_looked_up_by_mlx():
    layer = patched(scaled=False)
    np.testing.assert_array_equal(mx.compile(layer)(mx.array([3, 1])), layer(mx.array([3, 1])))


def test_one_that_trains_has_gradients():
    layer = patched(scaled=False)
    layer.train()
    gradient = value_and_grad(layer, lambda ids: layer(ids).sum())(mx.array([3, 3, 1]))[1]["weight"]
    np.testing.assert_array_equal(np.array(gradient)[:, 0], [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0])
