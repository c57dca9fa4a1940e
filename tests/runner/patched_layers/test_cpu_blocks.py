"""Tests blocks with the CPU's kernel against mlx-lm's own: caches that grow, are cut, joined and copied."""

import copy
import threading

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels.blocks.decoder_block import Block
from mlx_bulk.runner.layers.kv_cache import (
    finish_padding,
    fork_caches,
    join_caches,
    make_caches,
    merge_caches,
    prepare_padding,
    select,
    trim,
    widen_caches,
)
from mlx_bulk.runner.layers.network import Network
from mlx_bulk.runner.patched_layers.call_context import context_of
from mlx_lm.models.cache import BatchKVCache, KVCache
from numpy.typing import NDArray

from ..support.kernel_models import needed
from ..support.kernel_pairs import KINDS, QUICK, Both, close, ids

pytestmark = needed


@pytest.fixture
def both() -> Both:
    return Both()


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS])
def test_a_prefill_in_several_calls_and_100_steps(kind: str, padded: bool):
    """Beyond what a cache has room for at first, twice."""
    both = Both(kind)
    caches = both.caches(3, padded)
    for n in (40, 1, 2, 17):
        both.call(ids(3, n, n), caches)
    both.steps(3, 100, caches)


def test_blocks_with_windows_are_served_where_nothing_is_kept(monkeypatch: pytest.MonkeyPatch):
    """Texts within the window, beyond it, and with pads, which are left out."""
    both, calls = Both("gemma3_text"), list[int]()
    run = Block.__call__
    monkeypatch.setattr(Block, "__call__", lambda self, x, *rest: calls.append(x.shape[1]) or run(self, x, *rest))
    for t in (1, 5, 30):
        tokens = ids(3, t, seed=t)
        close(both.networks[1](tokens), both.networks[0](tokens))
    assert calls == [1, 1, 5, 5, 30, 30]
    whole, lengths = Network(both.networks[1])(tokens, None, lengths=[30, 12, 3]), (30, 12, 3)
    truth = both.networks[0](tokens)
    for row, n in enumerate(lengths):
        close(whole[row, :n], truth[row, :n])
    both.steps(2, 12, both.caches(2, padded=False))


def test_rows_of_unlike_length_that_leave_and_join(both: Both):
    caches, late = both.caches(4, padded=True), both.caches(2, padded=True)
    for parts, lengths in ((caches, [9, 3, 12, 7]), (late, [2, 15])):
        for each in parts:
            prepare_padding(each, lengths, max(lengths))
        both.call(ids(len(lengths), max(lengths)), parts, lengths=lengths)
        for each in parts:
            finish_padding(each)
    both.steps(4, 3, caches)
    for each in caches:
        select(each, [3, 1], 4, padded=True)
    both.steps(2, 3, caches)
    caches = [join_caches([mine, other]) for mine, other in zip(caches, late, strict=True)]
    both.steps(4, 3, caches)
    for each in caches:
        select(each, [1, 1, 0], 4, padded=True)
    both.steps(3, 70, caches)


def test_a_row_joins_an_empty_batch_and_pads_come_in_the_middle(both: Both):
    empty, caches = both.caches(1, padded=True), both.caches(2, padded=True)
    both.call(ids(2, 6), caches)
    caches = [join_caches([mine, other]) for mine, other in zip(caches, empty, strict=True)]
    for each in caches:
        prepare_padding(each, [2, 4, 5], 5)
    both.call(ids(3, 5), caches, lengths=[2, 4, 5])
    for each in caches:
        finish_padding(each)
    both.steps(3, 3, caches)


def test_trimmed_positions_are_written_again(both: Both):
    caches = both.caches(2, padded=False)
    both.call(ids(2, 20), caches)
    for n in (1, 5, 19):
        for each in caches:
            trim(each, n)
        both.call(ids(2, n, seed=n), caches)
    both.steps(2, 2, caches)


def test_writes_of_mlx_in_between_are_seen(both: Both):
    """As many positions as were trimmed: the cache looks as the kernel has left it, and its arrays are the same objects."""
    caches = both.caches(2, padded=False)
    both.call(ids(2, 20), caches)
    kept = copy.deepcopy(caches)  # so that mlx cannot write to the same memory
    for each in caches:
        trim(each, 3)
    with context_of(both.networks[1]).layer_by_layer():
        both.call(ids(2, 3, seed=1), caches, fast=False)
    both.steps(2, 3, caches)
    both.steps(2, 3, kept)


def test_a_cache_that_is_told_another_position(both: Both):
    caches = both.caches(2, padded=False)
    both.call(ids(2, 20), caches)
    for each in caches:
        for cache in each:
            cache.offset -= 5
    both.steps(2, 3, caches)


@pytest.mark.parametrize("padded", [False, True])
def test_copies_of_a_cache_continue_independently(both: Both, padded: bool):
    caches = both.caches(3, padded)
    both.call(ids(3, 10), caches)
    copies = [fork_caches(each, [2, 0, 0], 3, padded) for each in caches]
    deep = copy.deepcopy(caches)
    for seed in range(3):
        for i, parts in enumerate((caches, copies, deep)):
            both.call(ids(3, 1, seed=10 * seed + i), parts)
    with context_of(both.networks[1]).layer_by_layer():
        both.call(ids(3, 2, seed=51), deep, fast=False)
    both.steps(3, 2, caches)
    both.steps(3, 2, deep)


def test_one_row_widened_and_rows_merged(both: Both):
    one, other = both.caches(1, padded=False), both.caches(1, padded=False)
    both.call(ids(1, 9), one)
    both.call(ids(1, 4, seed=1), other)
    wide = [widen_caches(each, 3) for each in one]
    both.steps(3, 2, wide)
    for each in wide:
        select(each, [2, 0], 3, padded=False)
    both.steps(2, 2, wide)
    batch = [merge_caches(network, [a, b]) for network, a, b in zip(both.networks, one, other, strict=True)]
    both.steps(2, 3, batch)
    both.steps(1, 2, one)
    both.steps(2, 70, batch)


def test_caches_of_another_type_are_left_to_mlx(both: Both):
    caches = both.caches(2, padded=False)
    both.call(ids(2, 8), caches)
    for each in caches:
        for cache in each:
            cache.keys, cache.values = cache.keys.astype(mx.float16), cache.values.astype(mx.float16)
    both.used.clear()
    results = [each(ids(2, 3), cache=own) for each, own in zip(both.networks, caches, strict=True)]
    assert "block" not in both.used
    assert {cache.keys.dtype for each in caches for cache in each} == {mx.float16}
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=0.1)  # the new ones are rounded to it too


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_that_do_not_fit_the_cache_raise_the_error_of_mlx(both: Both, rows: int):
    layer, x = both.networks[1].model.layers[0], mx.random.normal((3, 2, 64))
    cache = KVCache()
    layer(x[:rows], None, cache)
    both.used.clear()
    with pytest.raises(ValueError, match="shape"):
        mx.eval(layer(x, None, cache))
    if rows > 1:
        with pytest.raises(ValueError, match="offset"):
            mx.eval(layer(x, None, BatchKVCache([0] * rows)))
    assert "block" not in both.used


@pytest.mark.parametrize("padded", [False, True])
def test_threads_share_a_network(both: Both, padded: bool):
    _, fast = both.networks
    prompts = [ids(1 + i, 6 + i, seed=i) for i in range(2)]

    def logits(i: int) -> NDArray[np.float32]:
        caches = make_caches(fast, 1 + i, padded=padded)
        parts = [fast(tokens, cache=caches) for tokens in (prompts[i], *(ids(1 + i, 1, seed=s) for s in range(20)))]
        return np.array(mx.concatenate(parts, axis=1))

    truth, found = [logits(i) for i in range(2)], dict[int, list[NDArray[np.float32]]]()

    def several(i: int) -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            found[i] = [logits(i) for _ in range(5)]

    threads = [threading.Thread(target=several, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, right in enumerate(truth):
        for each in found[i]:
            np.testing.assert_allclose(each, right, rtol=0, atol=1e-5)
