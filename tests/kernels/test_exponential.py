"""The polynomial exp against float64, over its whole range."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import exponential
from mlx_bulk.kernels.exponential import HIGHEST, LOWEST, SHAPES, Compiled


def exp_of(values: list[float]) -> list[float]:
    found = exponential.on_cpu(mx.array(values)).tolist()
    assert isinstance(found, list)
    return [float(value) for value in found if isinstance(value, float)]


def test_is_right_to_4e_7_of_the_value_over_the_whole_range():
    x = np.linspace(LOWEST, HIGHEST, 1_000_003).astype(np.float32)
    truth = np.exp(x.astype(np.float64))
    found = np.array(exponential.on_cpu(mx.array(x)), copy=False)
    assert np.abs(found / truth - 1).max() < 4e-7  # the polynomial's 1.1e-7 and some roundings of 6e-8


def test_is_exact_at_zero_and_zero_where_float32_ends():
    assert exp_of([0.0, -0.0, -np.inf, -1e30, -104.0, float(np.nextafter(np.float32(LOWEST), np.float32(-100)))]) == [1, 1, 0, 0, 0, 0]


def test_nan_stays():
    assert np.isnan(exp_of([np.nan, 0.0])).tolist() == [True, False]


def test_agrees_with_the_reference_of_mx():
    x = mx.random.normal((7, 33)) * 20
    np.testing.assert_allclose(
        exponential.on_cpu(x), exponential.reference(x), rtol=4e-6, atol=0
    )  # mx's own is off by 3e-6 at the far ends


def test_views_that_are_not_contiguous_give_the_same():
    x = mx.random.normal((6, 40, 2))
    view = x[:, ::2, 1]
    assert mx.array_equal(exponential.on_cpu(view), exponential.on_cpu(mx.contiguous(view)))


@pytest.mark.parametrize(("dtype", "suited"), [(mx.float32, True), (mx.float16, False), (mx.bfloat16, False)])
def test_only_float32_suits(dtype: mx.Dtype, suited: bool):
    assert exponential.suits(mx.zeros(1, dtype)) == (suited and exponential.device_name() == "cpu")


def test_more_shapes_than_are_kept_come_out_right():
    traced: list[tuple[int, ...]] = []

    def doubled(x: mx.array) -> mx.array:
        traced.append(x.shape)
        return x * 2

    compiled = Compiled(doubled)
    for n in [*range(1, SHAPES + 2), 1, SHAPES + 1]:
        assert compiled(mx.ones(n)).sum().item() == 2 * n
    assert traced == [*((n,) for n in range(1, SHAPES + 2)), (1,)]  # forgotten once, then kept
