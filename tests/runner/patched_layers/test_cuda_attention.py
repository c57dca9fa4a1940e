"""Tests in which calls our attention for CUDA takes the place of mlx-lm's, with a stand-in for the kernel: no GPU is needed."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.cuda import attention
from mlx_bulk.runner.caches.padded_kv_cache import PaddedKVCache, first_keys, tell_first_keys
from mlx_bulk.runner.patched_layers import cuda_attention
from mlx_lm.models import base
from mlx_lm.models.cache import BatchKVCache, BatchRotatingKVCache

attend: Any = cuda_attention.attend_on_cuda
mlx_lms: Any = base.scaled_dot_product_attention
PADS = [3, 0, 5]
WIDTH = 16


def filled(tokens: int = 8, pads: list[int] = PADS) -> PaddedKVCache:
    """A cache whose rows have some pads in front."""
    cache = PaddedKVCache(pads)
    cache.update_and_fetch(*(mx.random.normal((len(pads), 2, tokens, WIDTH)) for _ in range(2)))
    return cache


def products(q: mx.array, k: mx.array, v: mx.array, scale: float, first: mx.array) -> mx.array:
    """What the kernel computes, by mlx's operations."""
    seen = (mx.arange(k.shape[2]) >= first[:, None])[:, None, None]
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=seen)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls that the stand-in serves."""
    calls: list[int] = []

    def kernel(*given: Any) -> mx.array:
        calls.append(1)
        return products(*given)

    monkeypatch.setattr(attention, "of_padded_rows", kernel)
    monkeypatch.setattr(cuda_attention, "_tried", {})
    return calls


def stepped(cache: Any, tokens: int = 1, **options: Any) -> tuple[Any, ...]:
    """A call's arguments: queries, keys and values with the call's own, the cache, a scale, and the mask."""
    mask = base.create_attention_mask(mx.zeros((len(PADS), tokens, 8)), cache, **options)
    keys, values = cache.update_and_fetch(*(mx.random.normal((len(PADS), 2, tokens, WIDTH)) for _ in range(2)))
    return mx.random.normal((len(PADS), 4, tokens, WIDTH)), keys, values, cache, 0.25, mask


@pytest.mark.parametrize("window", [None, 4, 100])
def test_a_step_of_padded_rows_goes_to_the_kernel(served: list[int], window: int | None):
    given = stepped(filled(), window_size=window)
    found = attend(*given)
    np.testing.assert_allclose(found, mlx_lms(*given), atol=1e-6)
    assert len(served) == 2  # the first is a trial
    attend(*given)
    assert len(served) == 3


def test_all_layers_share_the_first_ones_mask(served: list[int]):
    first, second = filled(), filled()
    mask = base.create_attention_mask(mx.zeros((3, 1, 8)), first)
    _, keys, values, *_ = stepped(second)
    q = mx.random.normal((3, 4, 1, WIDTH))
    given = q, keys, values, second, 0.25, mask
    np.testing.assert_allclose(attend(*given), mlx_lms(*given), atol=1e-6)
    assert served


def test_masks_of_others_longer_calls_and_sinks_stay_with_mlx_lm(served: list[int]):
    given = stepped(filled())
    copy = mx.array(given[-1])  # the same mask, made by someone else
    attend(*given[:-1], copy)
    attend(*given, sinks=mx.zeros(4))
    attend(*stepped(filled(), tokens=2))
    attend(*stepped(BatchRotatingKVCache(max_size=32, left_padding=PADS)))
    assert not served
    assert first_keys(None) is None
    assert first_keys("causal") is None


def test_a_mask_of_fewer_keys_stays_with_mlx_lm(served: list[int]):
    old = base.create_attention_mask(mx.zeros((3, 1, 8)), filled())
    q, keys, values, cache, scale, _ = stepped(filled(tokens=1 + 8))
    with pytest.raises(ValueError, match="broadcast"):  # as mlx says of it
        mx.eval(attend(q, keys, values, cache, scale, old))
    assert not served


def test_long_calls_in_half_precision_go_by_products(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    by_products = attention.by_products
    monkeypatch.setattr(attention, "by_products", lambda *given: calls.append(1) or by_products(*given))  # pyright: ignore[reportUnknownLambdaType]
    q, k, v, cache, scale, mask = stepped(filled(), tokens=5)
    whole = mlx_lms(q, k, v, cache, scale, mask)
    found = attend(*(x.astype(mx.float16) for x in (q, k, v)), cache, scale, mask)
    rows = [slice(max(0, pads - 8), None) for pads in PADS]  # a pad's own query sees nothing
    for row, own in enumerate(rows):
        np.testing.assert_allclose(found[row, :, own], whole[row, :, own], atol=2e-3)
    assert calls
    attend(q, k, v, cache, scale, mask)
    attend(*(x.astype(mx.float16) for x in (q, k, v)), cache, scale, "causal")
    assert len(calls) == 1


def test_a_kernel_that_cannot_be_compiled_is_told_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    def broken(*_: Any) -> mx.array:
        raise RuntimeError("Failed to compile kernel: no nvrtc.\nlong log")

    monkeypatch.setattr(attention, "of_padded_rows", broken)
    monkeypatch.setattr(cuda_attention, "_tried", {})
    for _ in range(2):
        given = stepped(filled())
        np.testing.assert_allclose(attend(*given), mlx_lms(*given), atol=1e-6)
    assert [record.getMessage() for record in caplog.records] == [
        "mlx-lm's own attention stays in place, slower on this GPU: ours cannot be compiled (Failed to compile kernel: no nvrtc.)"
    ]


def test_only_mlx_lms_own_class_becomes_ours():
    plain, rotating = BatchKVCache(PADS), BatchRotatingKVCache(max_size=8, left_padding=PADS)
    tell_first_keys(plain)
    tell_first_keys(rotating)
    assert (type(plain), type(rotating)) == (PaddedKVCache, BatchRotatingKVCache)
    mask = plain.make_mask(1)
    assert mx.array_equal(mask, BatchKVCache(PADS).make_mask(1))
    assert np.array(first_keys(mask)).tolist() == PADS
