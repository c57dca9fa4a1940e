"""Tests weights as transformers saves them and mlx-lm does not read them: experts as matrices, beside biases."""

import mlx.core as mx
import numpy as np
import pytest
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


def test_experts_that_transformers_5_saves_one_by_one_are_stacked() -> None:
    each = {f"mlp.experts.{i}.{name}_proj.weight": mx.full((INNER, HIDDEN), i) for i in range(EXPERTS) for name in ("gate", "up")}
    each |= {f"mlp.experts.{i}.down_proj.weight": mx.full((HIDDEN, INNER), i) for i in range(EXPERTS)}
    read = mlx_lm_weights(each | {"mlp.gate.weight": mx.zeros(2)}, "qwen3_5_moe")
    assert {key: value.shape for key, value in read.items()} == {
        "mlp.gate.weight": (2,),
        "mlp.experts.gate_up_proj": (EXPERTS, 2 * INNER, HIDDEN),
        "mlp.experts.down_proj": (EXPERTS, HIDDEN, INNER),
    }
    assert read["mlp.experts.down_proj"][:, 0, 0].tolist() == [0, 1]
    assert mlx_lm_weights(each).keys() == each.keys()


@pytest.mark.parametrize("inner", [INNER, HIDDEN])
def test_experts_of_qwen3_vl_lie_as_on_the_hub_whichever_way_they_were_saved(inner: int) -> None:
    hub = {"mlp.experts.gate_up_proj": mx.ones((EXPERTS, HIDDEN, 2 * inner)), "mlp.experts.down_proj": mx.ones((EXPERTS, inner, HIDDEN))}
    turned = {key: value.swapaxes(1, 2) for key, value in hub.items()}
    for weights in (hub, turned):
        assert {key: value.shape for key, value in mlx_lm_weights(weights, "qwen3_vl_moe").items()} == {k: v.shape for k, v in hub.items()}
