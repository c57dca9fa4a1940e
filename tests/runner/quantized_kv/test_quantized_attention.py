"""Tests attention on packed keys and values against a float64 specification on what the bits stand for."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.kv_quantization import KVQuantization
from mlx_bulk.runner.quantized_kv import quantized_attention as quantized_attention_module
from mlx_bulk.runner.quantized_kv.packed_kv import PackedKV, pack
from mlx_bulk.runner.quantized_kv.quantized_attention import quantized_attention
from numpy.typing import NDArray

ROWS, HEADS, KEY_HEADS, LENGTH, WIDTH = 3, 6, 2, 21, 64
PADS = (0, 4, 19)
ATOL = 2e-5  # float32 sums of 64 products


def truth(q: Any, k: Any, v: Any, scale: float, mask: NDArray[Any]) -> NDArray[np.float64]:
    q, k, v = (np.array(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, HEADS // KEY_HEADS, axis=1) for x in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2)
    scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True) @ v


def packed(rng: np.random.Generator, bits: int, start: int) -> tuple[PackedKV, NDArray[np.float64]]:
    """Numbers in few bits, and what they stand for: the first ``start`` of each row as they were."""
    kv, numbers = KVQuantization(bits, 32, start), rng.normal(size=(ROWS, KEY_HEADS, LENGTH, WIDTH)).astype(np.float32)
    parts = pack(mx.array(numbers), kv)
    stands = np.array(mx.dequantize(*parts, group_size=32, bits=bits), np.float64)
    early = np.zeros((ROWS, KEY_HEADS, start, WIDTH), np.float32)
    for row, pads in enumerate(PADS):
        own = numbers[row, :, pads : pads + start]
        stands[row, :, pads : pads + start] = early[row, :, : own.shape[1]] = own
    return PackedKV(parts, mx.array(early) if start else None, mx.array(PADS), kv), stands


@pytest.mark.parametrize("mask", ["none", "causal", "seen", "by head", "added"])
@pytest.mark.parametrize("queries", [1, 3, 12])
@pytest.mark.parametrize(("bits", "start"), [(8, 0), (4, 0), (8, 5), (4, 30)])
def test_against_the_specification(bits: int, start: int, queries: int, mask: str):
    rng = np.random.default_rng(bits + start + queries)
    keys, k = packed(rng, bits, start)
    values, v = packed(rng, bits, start)
    q = rng.normal(size=(ROWS, HEADS, queries, WIDTH)).astype(np.float32)
    seen: Any = np.ones((1, 1, queries, LENGTH), np.bool_)
    given: Any = None
    if mask == "causal":
        seen, given = np.tril(seen[0, 0], LENGTH - queries)[None, None], "causal"
    elif mask == "seen":
        seen = np.arange(LENGTH) >= np.array(PADS)[:, None, None, None]
    elif mask == "by head":
        seen = rng.random((ROWS, HEADS, queries, LENGTH)) < 0.7
        seen[..., -1] = True
    elif mask == "added":
        seen = rng.normal(size=(1, HEADS, queries, LENGTH)).astype(np.float32)
    given = mx.array(seen) if mask in ("seen", "by head", "added") else given
    before = mx.array(q)
    found = quantized_attention(before, keys, values, 0.25, given)
    np.testing.assert_allclose(found, truth(q, k, v, 0.25, seen), rtol=0, atol=ATOL)
    np.testing.assert_array_equal(before, q)  # the caller's queries are its own


def test_a_query_that_sees_nothing_is_a_number():
    rng = np.random.default_rng(0)
    keys, _ = packed(rng, 8, 5)
    for queries in (1, 12):
        q = mx.array(rng.normal(size=(ROWS, HEADS, queries, WIDTH)).astype(np.float32))
        found = quantized_attention(q, keys, keys, 0.25, mx.zeros((1, 1, 1, LENGTH), mx.bool_))
        assert np.isfinite(np.array(found)).all()


def test_it_knows_the_shape_and_the_type_that_model_files_ask_for():
    keys, stands = packed(np.random.default_rng(0), 4, 5)
    assert keys.shape == stands.shape
    assert keys.dtype == mx.float32
    np.testing.assert_allclose(keys.whole(), stands, rtol=0, atol=1e-6)


def test_on_cuda_products_get_the_columns_of_a_cache_side_by_side(monkeypatch: pytest.MonkeyPatch):
    """Its kernels refuse a slice of a larger array; a cache holds room for tokens to come."""
    kv, rng = KVQuantization(8, 32, 0), np.random.default_rng(0)
    wide = [pack(mx.array(rng.normal(size=(ROWS, KEY_HEADS, LENGTH + 11, WIDTH)).astype(np.float32)), kv) for _ in range(2)]
    keys, values = (PackedKV([part[..., :LENGTH, :] for part in parts], None, mx.array(PADS), kv) for parts in wide)
    queries = mx.array(rng.normal(size=(ROWS, HEADS, 1, WIDTH)).astype(np.float32))
    found = quantized_attention(queries, keys, values, 0.25)
    given: list[mx.array] = []
    product: Any = mx.quantized_matmul

    def watched(x: mx.array, *parts: mx.array, **options: Any) -> mx.array:
        given.extend(parts)
        return product(x, *parts, **options)

    monkeypatch.setattr(mx, "quantized_matmul", watched)
    monkeypatch.setattr(quantized_attention_module, "device_name", lambda: "cuda")
    assert mx.array_equal(quantized_attention(queries, keys, values, 0.25), found)
    assert [np.array(part, copy=False).flags.c_contiguous for part in given] == [True] * 6
