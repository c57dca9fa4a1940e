"""Tests attention without a compiler: NumPy's agrees with the library's and with float64, in tiles of any size."""

import warnings

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import attention, native
from mlx_bulk.kernels.attention import Mask

from .test_attention import KINDS, SHAPES, in_float64, masks, qkv
from .without_compiler import remove_compiler

pytestmark = pytest.mark.cpu_path("NumPy computes where mlx has its own slow BLAS")

CLOSE = 8e-6  # scores of up to 20 are off by 1e-6 each, and so are their weights; values are up to 4


@pytest.mark.parametrize("most", [60, pytest.param(1000, marks=pytest.mark.slow), 1 << 20])  # scores of a tile: some queries, a head, rows
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("b", "h", "kv", "t", "length"), SHAPES)
def test_agrees_with_the_library_and_with_float64(b: int, h: int, kv: int, t: int, length: int, kind: str, most: int):
    q, k, v = qkv(b, h, kv, t, length, d=12, e=20)
    q, k = (x.transpose(0, 2, 1, 3) for x in (mx.contiguous(q.transpose(0, 2, 1, 3)), mx.contiguous(k.transpose(0, 2, 1, 3))))
    mask = masks(b, h, t, length)[kind]
    sinks = mx.array(np.random.default_rng(3).normal(0, 3, h).astype(np.float32))
    for of_heads, cap in ((None, 0.0), (sinks, 0.0), (None, 2.0)):
        with pytest.MonkeyPatch.context() as patch:
            by_library = None if native.library() is None else np.array(attention.on_cpu(q, k, v, 0.3, mask, of_heads, cap))
            remove_compiler(patch)
            patch.setattr(attention, "NUMPY_SCORES", most)
            assert attention.suits(q, k, v, mask, of_heads)
            found = np.array(attention.on_cpu(q, k, v, 0.3, mask, of_heads, cap))
        np.testing.assert_allclose(found, in_float64(q, k, v, 0.3, mask, of_heads, cap), rtol=0, atol=CLOSE)
        if by_library is not None:
            np.testing.assert_allclose(found, by_library, rtol=0, atol=CLOSE)


@pytest.mark.usefixtures("numpy_alone")
@pytest.mark.parametrize("t", [1, 3])
def test_queries_that_see_nothing_and_numbers_that_are_not_finite_are_as_in_the_specification(t: int):
    q, k, v = qkv(2, 2, 1, t, 9)
    q[0, 0, 0] = mx.nan
    blind: dict[str, Mask] = {"bool": mx.zeros((t, 9), mx.bool_), "added": mx.full((t, 9), -mx.inf)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mask in blind.values():
            for sinks in (None, mx.zeros(2)):
                found = np.array(attention.on_cpu(q, k, v, 0.3, mask, sinks))
                np.testing.assert_allclose(found, np.array(attention.reference(q, k, v, 0.3, mask, sinks)), rtol=0, atol=CLOSE)


@pytest.mark.usefixtures("numpy_alone")
def test_the_rows_of_a_batch_do_not_change_a_row():
    q, k, v = qkv(40, 6, 2, 30, 200)
    together = np.array(attention.on_cpu(q, k, v, 0.3, "causal"))
    np.testing.assert_array_equal(together[7:8], np.array(attention.on_cpu(q[7:8], k[7:8], v[7:8], 0.3, "causal")))


@pytest.mark.usefixtures("numpy_alone")
def test_other_precisions_do_not_suit():
    q, k, v = qkv(1, 2, 1, 3, 9)
    assert attention.suits(q, k, v, None)
    assert not attention.suits(q.astype(mx.bfloat16), k, v, None)
    assert not attention.suits(q, k, v, mx.zeros((3, 9), mx.int32))
