"""Tests the CPU's attention against its specification and mx's own, over the shapes and masks of mlx-lm's models."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import attention, native
from mlx_bulk.kernels.attention import Mask
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

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
    st.integers(1, 3), st.sampled_from([(4, 2), (3, 1), (2, 2), (9, 3)]), st.integers(1, 140), st.integers(0, 90), st.integers(1, 70),
    st.integers(1, 70), st.data(),
)  # fmt: skip
def test_any_shape_agrees_with_the_specification(b: int, heads: tuple[int, int], t: int, before: int, d: int, e: int, data: st.DataObject):
    """Tiles that are not full, heads that fill no vector."""
    (h, kv), length = heads, t + before
    q, k, v = qkv(b, h, kv, t, length, d, e)
    mask = masks(b, h, t, length)[data.draw(st.sampled_from(KINDS))]
    scale = 1.2 / d**0.5
    found = attention.on_cpu(q, k, v, scale, mask)
    # Scores of up to 20 are off by 1e-6 each, and so are their weights; values are up to 4.
    np.testing.assert_allclose(found, in_float64(q, k, v, scale, mask), rtol=0, atol=8e-6)


def in_float64(
    q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Mask, sinks: mx.array | None = None, cap: float = 0.0
) -> NDArray[np.float64]:
    groups, t, length = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    keys, values = (np.repeat(np.array(x, np.float64), groups, axis=1) for x in (k, v))
    scores = scale * np.array(q, np.float64) @ keys.swapaxes(-1, -2)
    scores = cap * np.tanh(scores / cap) if cap else scores
    if isinstance(mask, str):
        scores = np.where(np.arange(length) <= np.arange(length - t, length)[:, None], scores, -np.inf)
    elif mask is not None:
        given = np.array(mask)
        scores = np.where(given, scores, -np.inf) if given.dtype == bool else scores + given
    sink = np.full((q.shape[1], 1, 1), -np.inf) if sinks is None else np.array(sinks, np.float64)[:, None, None]
    peak = np.maximum(scores.max(axis=-1, keepdims=True), sink)
    weights = np.exp(scores - peak)
    return weights / (weights.sum(axis=-1, keepdims=True) + np.exp(sink - peak)) @ values


@pytest.mark.parametrize("cap", [0.0, 2.0, pytest.param(50.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("b", "h", "kv", "t", "length"), SHAPES)
def test_sinks_and_caps_agree_with_float64(b: int, h: int, kv: int, t: int, length: int, kind: str, cap: float):
    q, k, v = qkv(b, h, kv, t, length, d=12, e=20)
    mask, sinks = masks(b, h, t, length)[kind], mx.array(np.random.default_rng(3).normal(0, 3, h).astype(np.float32))
    for of_heads in (None, sinks):
        found = attention.on_cpu(q, k, v, 0.3, mask, of_heads, cap)
        np.testing.assert_allclose(found, in_float64(q, k, v, 0.3, mask, of_heads, cap), rtol=0, atol=8e-6)  # as above
        np.testing.assert_allclose(found, attention.reference(q, k, v, 0.3, mask, of_heads, cap), rtol=0, atol=8e-6)
    theirs = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask, sinks=sinks)
    np.testing.assert_allclose(attention.on_cpu(q, k, v, 0.3, mask, sinks), theirs, rtol=0, atol=ATOL)


@pytest.mark.parametrize("t", [1, 3])
def test_a_sink_takes_all_where_a_query_sees_nothing_and_far_sinks_take_all_or_none(t: int):
    q, k, v = qkv(1, 2, 1, t, 9)
    for mask in (mx.zeros((t, 9), mx.bool_), mx.full((t, 9), -mx.inf)):
        assert mx.array_equal(attention.on_cpu(q, k, v, 0.3, mask, mx.zeros(2)), mx.zeros((1, 2, t, 16)))
    found = attention.on_cpu(q, k, v, 0.3, None, mx.array([1e4, -mx.inf]))
    assert mx.array_equal(found[:, 0], mx.zeros((1, t, 16)))
    assert mx.array_equal(found[:, 1], attention.on_cpu(q, k, v, 0.3)[:, 1])


def test_nan_stays_with_caps_and_sinks():
    q, k, v = qkv(1, 2, 1, 3, 9)
    q[0, 0, 1] = mx.nan
    found = np.isnan(np.array(attention.on_cpu(q, k, v, 0.3, None, mx.zeros(2), 5.0)))
    assert found[0, 0, 1].all()
    assert found.sum() == found[0, 0, 1].size
    of_sink = np.isnan(np.array(attention.on_cpu(q[:, 1:], k, v, 0.3, None, mx.array([mx.nan]))))
    assert of_sink.all()


def test_a_cap_is_tanh_to_3e_7_of_the_value_over_the_whole_range():
    """One key beside one of score 0: the scores are read off as the logarithms of the weights' ratios."""
    x = np.concatenate([np.linspace(-12, 12, 100_001), [-np.inf, np.inf, 1e-20]]).astype(np.float32)
    keys = np.stack([np.zeros_like(x), x], axis=1)[:, None, :, None]
    values = np.broadcast_to(np.eye(2, dtype=np.float32), (len(x), 1, 2, 2))
    found = np.array(attention.on_cpu(mx.ones((len(x), 1, 1, 1)), _array(keys), _array(values), 1.0, None, None, 1.0))[:, 0, 0].astype(
        np.float64
    )
    truth = np.tanh(x.astype(np.float64))
    assert np.abs(np.log(found[:, 1] / found[:, 0]) - truth).max() < 1e-6  # and the roundings of exp and of the division


@pytest.mark.parametrize("t", [1, 3, 40])
def test_a_query_whose_scores_are_more_than_a_tile_holds(t: int):
    q, k, v = qkv(1, 3, 1, t, 90_000, d=8, e=8)
    found, truth = attention.on_cpu(q, k, v, 0.3, "causal"), attention.reference(q, k, v, 0.3, "causal")
    np.testing.assert_allclose(found, truth, rtol=0, atol=2e-5)  # sums of 90,000 weights


def test_weights_are_exp_to_4e_7_of_the_value_over_the_whole_range():
    """Two keys a row, of scores 0 and x, whose weights are read off by values that are ones and zeros."""
    x = np.linspace(-87.0, 0, 100_001).astype(np.float32)
    keys = np.stack([np.zeros_like(x), x], axis=1)[:, None, :, None]
    values = np.broadcast_to(np.eye(2, dtype=np.float32), (len(x), 1, 2, 2))
    found = np.array(attention.on_cpu(mx.ones((len(x), 1, 1, 1)), _array(keys), _array(values), 1.0))[:, 0, 0].astype(np.float64)
    assert np.abs(found[:, 1] / found[:, 0] / np.exp(x.astype(np.float64)) - 1).max() < 6e-7  # and two roundings of 6e-8 by the division


def test_scores_far_below_have_no_weight():
    k = mx.array([0.0, -104.0, -1e30]).reshape(1, 1, 3, 1)
    found = attention.on_cpu(mx.ones((1, 1, 1, 1)), k, mx.eye(3).reshape(1, 1, 3, 3), 1.0)
    assert found.flatten().tolist() == [1, 0, 0]


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("t", [1, 12])
def test_nan_of_any_kind_stays(bits: int, t: int):
    nan = mx.array(np.array([bits], np.uint32).view(np.float32))
    q, k, v = qkv(1, 1, 1, t, 20, d=4, e=4)
    k[0, 0, 3, 1] = nan[0]
    assert np.isnan(np.array(attention.on_cpu(q, k, v, 0.3))).all()


def test_nan_in_a_query_stays_its_own():
    q, k, v = qkv(2, 2, 1, 3, 3)
    q[1, 0, 1] = mx.nan
    found = np.isnan(np.array(attention.on_cpu(q, k, v, 0.3)))
    assert found[1, 0, 1].all()
    assert found.sum() == found[1, 0, 1].size


def test_keys_after_a_query_do_not_enter():
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


def test_no_keys_are_left_to_mx():
    """The kernel divides by the numbers of a row's scores."""
    assert attention.suits(*qkv(1, 2, 1, 3, 1), None)
    assert not attention.suits(*qkv(1, 2, 1, 3, 0), None)


def test_scores_far_apart_do_not_overflow():
    q, k, v = qkv(1, 2, 2, 9, 9)
    found = attention.on_cpu(q * 300, k, v, 1.0, "causal")
    np.testing.assert_allclose(
        found, attention.reference(q * 300, k, v, 1.0, "causal"), rtol=0, atol=5e-4
    )  # scores of 1e4: rounded to 1e-3


def test_a_row_does_not_depend_on_other_rows():
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
