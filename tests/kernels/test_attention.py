"""The CPU's attention against its specification and mx's own, over the shapes and masks that mlx-lm's models pass."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import attention
from mlx_bulk.kernels.attention import Mask
from numpy.typing import NDArray

ATOL = 3e-6  # of values around 1: exp's error and float32's rounding of sums


def qkv(b: int, h: int, kv: int, t: int, length: int, d: int = 16, e: int = 16, seed: int = 0) -> tuple[mx.array, mx.array, mx.array]:
    rng = np.random.default_rng(seed)
    q, k, v = rng.normal(0, 2, (b, h, t, d)), rng.normal(0, 1, (b, kv, length, d)), rng.normal(0, 1, (b, kv, length, e))
    return mx.array(q.astype(np.float32)), mx.array(k.astype(np.float32)), mx.array(v.astype(np.float32))


def _array(x: NDArray[np.bool_] | NDArray[np.float32]) -> mx.array:
    return mx.array(x)  # pyright: ignore[reportArgumentType]


def masks(b: int, h: int, t: int, length: int) -> dict[str, Mask]:
    """One of each kind and shape; each query sees a key."""
    seen = np.random.default_rng(1).random((b, h, t, length)) < 0.5
    seen[..., 0] = True
    added = np.where(seen, np.random.default_rng(2).normal(0, 1, seen.shape), -np.inf).astype(np.float32)
    return {
        "none": None,
        "causal": "causal",
        "bool of all": _array(seen),
        "bool of rows": _array(seen[:, :1]),
        "bool of keys": _array(seen[:, :1, :1]),
        "bool of queries and keys": _array(seen[0, 0]),
        "added to all": _array(added),
        "added to queries and keys": _array(added[0, 0]),
        "added to heads": _array(added[:1]),
    }


KINDS = list(masks(1, 1, 1, 1))
SHAPES = [(2, 4, 2, 7, 7), (2, 4, 4, 5, 12), (3, 6, 1, 1, 20), (1, 2, 1, 150, 150), (2, 9, 3, 70, 200), (1, 3, 3, 1, 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("b", "h", "kv", "t", "length"), SHAPES)
def test_agrees_with_the_specification_and_with_mx(b: int, h: int, kv: int, t: int, length: int, kind: str):
    q, k, v = qkv(b, h, kv, t, length)
    mask = masks(b, h, t, length)[kind]
    found = attention.on_cpu(q, k, v, 0.3, mask)
    np.testing.assert_allclose(found, attention.reference(q, k, v, 0.3, mask), rtol=0, atol=ATOL)
    np.testing.assert_allclose(found, mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask), rtol=0, atol=ATOL)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.sampled_from([(4, 2), (3, 1), (2, 2)]), st.integers(1, 140), st.integers(0, 90), st.integers(10, 18), st.data()
)
def test_tiles_of_any_size_give_the_same(b: int, heads: tuple[int, int], t: int, before: int, bits: int, data: st.DataObject):
    """Tiles of few queries and rows, and of one query whose scores alone are more than a tile holds."""
    (h, kv), length = heads, t + before
    q, k, v = qkv(b, h, kv, t, length, e=8)
    mask = masks(b, h, t, length)[data.draw(st.sampled_from(KINDS))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "TILE_BYTES", 1 << bits)
        found = attention.on_cpu(q, k, v, 0.3, mask)
    np.testing.assert_allclose(found, attention.reference(q, k, v, 0.3, mask), rtol=0, atol=ATOL)


def test_keys_behind_a_query_do_not_enter():
    q, k, v = qkv(2, 4, 2, 100, 130)
    before = mx.arange(130)[:, None] < 95
    first = attention.on_cpu(q, k, v, 0.3, "causal")
    second = attention.on_cpu(q, mx.where(before, k, 1e4), mx.where(before, v, mx.nan), 0.3, "causal")
    assert mx.array_equal(first[:, :, :64], second[:, :, :64])  # a tile: not even NaN behind it is touched


def test_a_query_that_sees_nothing_is_as_mx_has_it():
    q, k, v = qkv(1, 2, 1, 3, 4)
    seen = mx.array([[True] * 4, [False] * 4, [True, False, False, False]])
    for mask in (seen, mx.where(seen, 0.0, -mx.inf)):
        theirs = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)
        np.testing.assert_allclose(attention.on_cpu(q, k, v, 0.3, mask), theirs, rtol=0, atol=ATOL)


def test_scores_far_apart_do_not_overflow():
    q, k, v = qkv(1, 2, 2, 9, 9)
    found = attention.on_cpu(q * 300, k, v, 1.0, "causal")
    np.testing.assert_allclose(
        found, attention.reference(q * 300, k, v, 1.0, "causal"), rtol=0, atol=5e-4
    )  # scores of 1e4: rounded to 1e-3


def test_a_row_does_not_depend_on_what_its_mates_hold():
    """Deterministic mode's promise, bit for bit, with tiles of one row and of several."""
    q, k, v = qkv(5, 4, 2, 90, 90)
    order = mx.array([0, 2, 1, 4, 3])
    first, second = attention.on_cpu(q, k, v, 0.3, "causal"), attention.on_cpu(q[order], k[order], v[order], 0.3, "causal")
    assert mx.array_equal(first[0], second[0])


def test_views_of_a_cache_give_the_same_as_copies():
    q, k, v = qkv(2, 4, 2, 1, 64)
    k, v = k[:, :, :40], mx.contiguous(v.swapaxes(1, 2))[:, :40].swapaxes(1, 2)
    found = attention.on_cpu(q, k, v, 0.3)
    np.testing.assert_allclose(found, attention.on_cpu(q, mx.contiguous(k), mx.contiguous(v), 0.3), rtol=0, atol=1e-6)
