"""Tests weights as transformers saves them and mlx-lm does not read them: experts as matrices, beside biases."""

import mlx.core as mx
import numpy as np
from mlx_bulk.runner.models.weights_compat import mlx_lm_weights

EXPERTS, HIDDEN, INNER = 2, 3, 4


def test_experts_with_biases_are_transposed_and_get_a_suffix():
    weights = {
        "mlp.experts.gate_up_proj": mx.arange(EXPERTS * HIDDEN * 2 * INNER).reshape(EXPERTS, HIDDEN, 2 * INNER),
        "mlp.experts.gate_up_proj_bias": mx.zeros((EXPERTS, 2 * INNER)),
        "mlp.experts.down_proj": mx.zeros((EXPERTS, INNER, HIDDEN)),
        "mlp.experts.down_proj_bias": mx.zeros((EXPERTS, HIDDEN)),
    }
    read = mlx_lm_weights(weights)
    assert {key: value.shape for key, value in read.items()} == {
        "mlp.experts.gate_up_proj.weight": (EXPERTS, 2 * INNER, HIDDEN),
        "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * INNER),
        "mlp.experts.down_proj.weight": (EXPERTS, HIDDEN, INNER),
        "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
    }
    np.testing.assert_array_equal(
        np.array(read["mlp.experts.gate_up_proj.weight"]), np.array(weights["mlp.experts.gate_up_proj"]).transpose(0, 2, 1)
    )


def test_transposed_experts_lie_in_memory_as_kernels_read_them():
    """A view would be copied whole in each call of its layer."""
    weights = {"mlp.experts.down_proj": mx.ones((EXPERTS, INNER, HIDDEN)), "mlp.experts.down_proj_bias": mx.zeros((EXPERTS, HIDDEN))}
    read = mlx_lm_weights(weights)["mlp.experts.down_proj.weight"]
    mx.eval(read)
    assert memoryview(read).c_contiguous  # pyright: ignore[reportArgumentType]


def test_packed_experts_and_those_of_other_models_stay():
    packed = {"mlp.experts.gate_up_proj_blocks": mx.zeros((2, 8, 1, 16)), "mlp.experts.gate_up_proj_bias": mx.zeros((2, 8))}
    unbiased = {"feed_forward.experts.gate_up_proj": mx.zeros((2, 3, 8)), "feed_forward.experts.down_proj": mx.zeros((2, 4, 3))}
    for weights in (packed, unbiased):
        assert mlx_lm_weights(weights).keys() == weights.keys()
