"""Tests that our activations leave a function to mlx while it traces it."""

import importlib
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_bulk.runner.layers import kernel_injection

from ..support.kernel_models import needed

pytestmark = needed


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("file", "function", "given"),
    [
        ("gemma3n", "gelu_topk", [mx.array(1.0)]),
        ("iquestloopcoder", "_silu_mul", [mx.ones((2, 8))]),
        ("step3p5", "clamped_swiglu", [mx.ones((2, 8)), 7.0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_activations_inside_a_function_that_mlx_compiles_are_left_to_mlx(file: str, function: str, given: list[Any]):
    """There is nothing to compute while it is traced; g++ takes its time only when a result is read."""
    module: Any = importlib.import_module(f"mlx_lm.models.{file}")
    own: Any = getattr(module, function)
    assert module.nn is nn
    try:
        module.nn = kernel_injection._fast_nn()  # pyright: ignore[reportPrivateUsage]
        kernel_injection.functions_used.clear()
        own(mx.ones((2, 8)), *given)
        assert kernel_injection.functions_used == set()
    finally:
        module.nn = nn
