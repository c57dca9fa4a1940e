"""Tests attention on CUDA against float64. What needs no GPU runs anywhere; the kernel itself runs on CUDA alone."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.backend import device_name
from mlx_bulk.kernels.cuda import attention
from numpy.typing import NDArray

pytestmark = pytest.mark.compiles
on_cuda = pytest.mark.skipif(device_name() != "cuda", reason="it serves CUDA")

CLOSE = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1.5e-2}  # rounding of the result, whose numbers are about 1
PRODUCTS = {**CLOSE, mx.float32: 2e-3}  # mlx rounds a product's float32 numbers to 11 bits on CUDA
Array = NDArray[np.float64]


def random(dtype: mx.Dtype, *shape: int) -> mx.array:
    """Random numbers, the same ones for one shape."""
    return mx.array(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)).astype(dtype)


def to_mx(x: Any) -> mx.array:
    return mx.array(x)


def exact(x: mx.array) -> Array:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def truth(q: mx.array, k: mx.array, v: mx.array, scale: float, seen: NDArray[np.bool_], sinks: mx.array | None = None) -> Array:
    """softmax(scale · q kᵀ) v of the keys that ``seen`` [B, 1 or H, T, L] marks, by NumPy in float64."""
    queries, (keys, values) = exact(q), (np.repeat(exact(x), q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.where(seen, scale * queries @ keys.swapaxes(-1, -2), np.finfo(np.float32).min)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(exact(sinks)[:, None, None], (*scores.shape[:3], 1))], axis=-1)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return shares[..., : k.shape[2]] @ values


def from_first(first: list[int], length: int) -> NDArray[np.bool_]:
    return np.arange(length)[None, None, None] >= np.array(first)[:, None, None, None]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize(("heads", "kv", "of_heads"), [(4, 4, False), (4, 2, False), (6, 1, False), (4, 2, True)])
def test_products_agree_with_float64(dtype: mx.Dtype, sunk: bool, heads: int, kv: int, of_heads: bool):
    q, k, v = random(dtype, 3, heads, 5, 32), random(dtype, 3, kv, 11, 32), random(dtype, 3, kv, 11, 16)
    seen = from_first([0, 4, 8], 11) & (np.arange(6, 11)[:, None] >= np.arange(11))
    if of_heads:
        seen = seen & (np.arange(11) != np.arange(heads)[:, None, None])
    sinks = random(dtype, heads) if sunk else None
    found = attention.by_products(q, k, v, 0.3, to_mx(seen), sinks)
    assert found.dtype == dtype
    np.testing.assert_allclose(exact(found), truth(q, k, v, 0.3, seen, sinks), rtol=0, atol=PRODUCTS[dtype])


def test_a_mask_without_axes_of_rows_and_heads_serves_all():
    q, k, v = random(mx.float16, 2, 4, 3, 16), random(mx.float16, 2, 2, 7, 16), random(mx.float16, 2, 2, 7, 16)
    seen = np.arange(4, 7)[:, None] >= np.arange(7)
    found = attention.by_products(q, k, v, 1.0, to_mx(seen))
    np.testing.assert_allclose(exact(found), truth(q, k, v, 1.0, seen[None, None]), rtol=0, atol=PRODUCTS[mx.float16])


def test_a_query_that_sees_nothing_takes_the_mean():
    q, k, v = random(mx.float16, 1, 2, 2, 16), random(mx.float16, 1, 2, 6, 16), random(mx.float16, 1, 2, 6, 16)
    found = attention.by_products(q, k, v, 1.0, mx.zeros((1, 1, 2, 6), mx.bool_))
    np.testing.assert_allclose(exact(found), np.broadcast_to(exact(v).mean(2, keepdims=True), (1, 2, 2, 16)), atol=2e-3)


def test_products_serve_half_precision_and_no_more_numbers_than_the_bound():
    def suited(length: int, heads: int = 16, tokens: int = 2048, dtype: mx.Dtype = mx.float16, mask: mx.Dtype = mx.bool_) -> bool:
        q, k = mx.zeros((1, heads, tokens, 64), dtype), mx.zeros((1, 2, length, 64), dtype)
        return attention.suits_products(q, k, k, mx.zeros((4, 4), mask))

    assert suited(4064)  # 16 x 2048 x 4064 scores and 2 x 2 x 4064 x 64 numbers of 4 bytes
    assert not suited(4096)
    assert not suited(600_000, heads=2, tokens=2)  # few scores of many keys
    assert not suited(64, dtype=mx.float32)  # mlx takes no cuDNN for it
    assert not suited(64, mask=mx.float16)


def test_the_kernel_serves_one_query_a_row_and_heads_that_fit():
    def suited(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...] | None = None, dtype: mx.Dtype = mx.float16) -> bool:
        return attention.suits(mx.zeros(q, dtype), mx.zeros(k, mx.float16), mx.zeros(v or k, mx.float16))

    assert suited((8, 8, 1, 64), (8, 4, 90, 64))
    assert not suited((8, 8, 2, 64), (8, 4, 90, 64))
    assert not suited((8, 8, 1, 64), (8, 3, 90, 64))
    assert not suited((8, 8, 1, 72), (8, 4, 90, 72))
    assert not suited((8, 8, 1, 512), (8, 4, 90, 512))
    assert not suited((8, 8, 1, 64), (8, 4, 90, 64), (8, 4, 90, 32))
    assert not suited((8, 8, 1, 64), (8, 4, 90, 64), dtype=mx.float32)
    assert suited((8, 8, 1, 64), (8, 4, 5000, 64))
    assert suited((1, 8, 1, 64), (1, 4, 2048, 64))
    assert not suited((1, 8, 1, 64), (1, 4, 2049, 64))  # four blocks of threads


@on_cuda
@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(
    ("heads", "kv", "width"), [(16, 8, 128), (4, 4, 64), (8, 1, 96), (12, 4, 80), (64, 8, 64), (8, 4, 256), (5, 1, 32), (4, 2, 16)]
)
@pytest.mark.parametrize("length", [1, 2, 9, 130, 301])
def test_the_kernel_agrees_with_float64(dtype: mx.Dtype, heads: int, kv: int, width: int, length: int):
    first = [0, length - 1, length // 2, length // 3]
    q, k, v = random(dtype, 4, heads, 1, width), random(dtype, 4, kv, 512, width), random(dtype, 4, kv, 512, width)
    k, v = k[:, :, :length], v[:, :, :length]
    found = attention.of_padded_rows(q, k, v, width**-0.5, mx.array(first, mx.int32))
    np.testing.assert_allclose(exact(found), truth(q, k, v, width**-0.5, from_first(first, length)), rtol=0, atol=CLOSE[dtype])


@on_cuda
def test_pads_are_not_read_and_other_rows_and_pads_change_no_bit():
    first, length = [0, 17, 100, 250, 299], 300
    q, k, v = random(mx.bfloat16, 5, 16, 1, 128), random(mx.bfloat16, 5, 8, 512, 128), random(mx.bfloat16, 5, 8, 512, 128)
    pads = to_mx(~from_first(first, 512)[:, :, 0, :, None])
    k, v = (mx.where(pads, mx.nan, x)[:, :, :length] for x in (k, v))
    together = attention.of_padded_rows(q, k, v, 0.1, mx.array(first, mx.int32))
    for row, at in enumerate(first):
        own = slice(row, row + 1)
        alone = attention.of_padded_rows(q[own], k[own, :, at:], v[own, :, at:], 0.1, mx.array([0], mx.int32))
        assert mx.array_equal(alone[0], together[row])


@on_cuda
def test_queries_may_have_any_strides():
    q, k, v = random(mx.float16, 2, 1, 4, 64).swapaxes(1, 2), random(mx.float16, 2, 2, 40, 64), random(mx.float16, 2, 2, 40, 64)
    found = attention.of_padded_rows(q, k, v, 0.2, mx.array([0, 3], mx.int32))
    np.testing.assert_allclose(exact(found), truth(q, k, v, 0.2, from_first([0, 3], 40)), rtol=0, atol=CLOSE[mx.float16])
