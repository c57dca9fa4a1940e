"""Tests caches of a batch: forks share nothing, rows keep the order asked for, and sizes are those of the arrays."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.layers.cache_bytes import growth
from mlx_bulk.runner.layers.kv_cache import (
    Caches,
    evaluate_caches,
    finish_padding,
    fork_caches,
    make_caches,
    prepare_padding,
    select,
    set_call_lengths,
    trim,
    trimmable,
    widen_caches,
)
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache

from ..support.tiny import PADDED, build

TOKENS = np.random.default_rng(0).integers(0, 256, (3, 12))


def filled(name: str, padded: bool) -> Caches:
    caches = make_caches(build(name), 3, padded)
    build(name)(mx.array(TOKENS), cache=caches)
    evaluate_caches(caches)
    return caches


def next_logits(name: str, caches: Caches, rows: int) -> Any:
    return np.array(build(name)(mx.array([[7]] * rows), cache=caches)[:, -1])


@pytest.mark.parametrize("calls", [[24], [10, 14], [8, 8, 8], [3, 21], [17, 7]])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
def test_pads_change_nothing_in_whichever_call_a_row_ends(name: str, calls: list[int]):
    lengths, tokens = [24, 10, 17, 3], np.random.default_rng(1).integers(0, 256, (4, 24))
    caches = make_caches(build(name), 4, padded=True)
    prepare_padding(caches, lengths, 24)
    for end, width in zip(np.cumsum(calls).tolist(), calls, strict=True):
        set_call_lengths(caches, [n - end + width for n in lengths], width)
        build(name)(mx.array(tokens[:, end - width : end]), cache=caches)
    finish_padding(caches)
    found = next_logits(name, caches, 4)
    for row, n, logits in zip(tokens, lengths, found, strict=True):
        alone = make_caches(build(name), 1, padded=False)
        build(name)(mx.array(row[None, :n]), cache=alone)
        np.testing.assert_allclose(logits, next_logits(name, alone, 1)[0], rtol=0, atol=1e-4)


class Unfilled:
    """A model of two caches, of which its layers fill one."""

    def make_cache(self) -> list[Any]:
        return [CacheList(KVCache(), KVCache()), ArraysCache(1), KVCache()]


def test_a_cache_that_no_layer_fills_is_left_as_it_is():
    caches: list[Any] = make_caches(Unfilled(), 2, padded=True)
    prepare_padding(caches, [4, 1], 4)
    keys = mx.arange(8.0).reshape(2, 1, 4, 1)
    caches[0].caches[0].update_and_fetch(keys, keys)
    caches[1][0] = mx.ones((2, 1))
    finish_padding(caches)
    assert caches[0].caches[0].left_padding.tolist() == [0, 3]
    assert caches[0].caches[0].keys_and_values()[0][1, 0, -1, 0].item() == 4
    assert caches[0].caches[1].empty()
    assert caches[1].lengths is None
    select(caches, [1], 2, padded=True)
    assert caches[0].caches[0].keys_and_values()[0][0, 0, :, 0].tolist() == [4]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
def test_rows_are_kept_forked_and_reordered(name: str, padded: bool):
    whole = next_logits(name, filled(name, padded), 3)
    assert np.abs(whole[0] - whole[2]).max() > 0.1
    caches = filled(name, padded)
    select(caches, [2, 0, 2, 1, 0], 3, padded)
    # another number of rows is another shape of the same products
    np.testing.assert_allclose(next_logits(name, caches, 5), whole[[2, 0, 2, 1, 0]], rtol=0, atol=1e-4)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "lfm2"])
def test_a_fork_leaves_the_original_as_it_was(name: str, padded: bool):
    whole = next_logits(name, filled(name, padded), 3)
    caches = filled(name, padded)
    twin = fork_caches(caches, [1, 1, 0], 3, padded)
    for _ in range(3):
        next_logits(name, twin, 3)
    np.testing.assert_array_equal(next_logits(name, caches, 3), whole)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba", "lfm2"])
def test_one_row_is_widened_to_copies_that_share_nothing(name: str):
    caches = make_caches(build(name), 1, padded=False)
    build(name)(mx.array(TOKENS[:1]), cache=caches)
    wide = widen_caches(caches, 3)
    for _ in range(3):
        next_logits(name, wide, 3)
    one = next_logits(name, widen_caches(caches, 1), 1)
    np.testing.assert_allclose(next_logits(name, widen_caches(caches, 3), 3), np.repeat(one, 3, axis=0), rtol=0, atol=1e-4)
    np.testing.assert_allclose(next_logits(name, caches, 1), one, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "room"), [("llama", 1000), ("gemma3_text", 5), ("mamba2", -1), ("lfm2", -1)])
def test_tokens_are_taken_back_where_nothing_was_forgotten_for_them(name: str, room: int):
    """Gemma 3's window is 8 tokens here, of which 2 are taken; a recurrent state takes nothing back."""
    caches = make_caches(build(name), 2, padded=False)
    build(name)(mx.array(TOKENS[:2, :2]), cache=caches)
    assert [trimmable(caches, n) for n in (0, 5, 6, 1000)] == [room >= n for n in (0, 5, 6, 1000)]
    truth = next_logits(name, fork_caches(caches, [0, 1], 2, padded=False), 2)
    for width in (5, 1, 3):
        if trimmable(caches, width):
            build(name)(mx.array(TOKENS[1:, :width]), cache=caches)
            trim(caches, width)
    np.testing.assert_allclose(next_logits(name, caches, 2), truth, rtol=0, atol=1e-5)


def test_keeping_all_rows_touches_nothing():
    filtered: list[mx.array] = []

    class Recording:
        def filter(self, index: mx.array) -> None:
            filtered.append(index)

    select([Recording()], [0, 1, 2], 3, padded=True)  # pyright: ignore[reportArgumentType]
    assert filtered == []


def test_rows_of_a_list_of_caches_are_selected_within():
    inner = KVCache()
    inner.update_and_fetch(mx.arange(3.0).reshape(3, 1, 1, 1), mx.arange(3.0).reshape(3, 1, 1, 1))
    both: Any = CacheList(inner, KVCache())
    select([both], [2, 0], 3, padded=False)
    assert inner.keys is not None
    assert inner.keys[:, 0, 0, 0].tolist() == [2.0, 0.0]


def test_a_layer_that_cannot_be_padded_says_so():
    class Quantized:
        def make_cache(self) -> list[Any]:
            return [QuantizedKVCache()]

    with pytest.raises(AttributeError):
        make_caches(Quantized(), 2, padded=True)


@pytest.mark.parametrize(("name", "by_token"), [("llama", 2 * 2 * 2 * 16 * 4), ("lfm2", 1 * 2 * 2 * 16 * 4), ("mamba2", 0)])
def test_growth_is_layers_times_keys_and_values(name: str, by_token: int):
    """layers x (keys, values) x heads x width x 4 bytes; a recurrent layer's state does not grow."""
    caches = make_caches(build(name), 1, padded=False)
    build(name)(mx.array(TOKENS[:1]), cache=caches)
    evaluate_caches(caches)
    found = growth(caches)
    assert found[0] == by_token
    assert (found[1] > 0) == (name != "llama")


@pytest.mark.parametrize("name", PADDED)
def test_empty_caches_hold_the_rows_asked_for(name: str):
    caches = make_caches(build(name), 3, padded=True)
    assert next_logits(name, caches, 3).shape == (3, 256)
