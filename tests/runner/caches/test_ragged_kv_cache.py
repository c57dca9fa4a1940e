"""Tests caches in which each row has its own memory, against mlx-lm's own batches: rows join, leave, fork and grow."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.runner.caches import ragged_kv_cache
from mlx_bulk.runner.caches.ragged_kv_cache import STEP, RaggedKVCache
from mlx_bulk.runner.layers import kv_cache
from mlx_bulk.runner.layers.kv_cache import Caches, finish_padding, join_caches, make_caches, merge_caches, select
from mlx_bulk.runner.patched_layers import cpu_blocks
from mlx_bulk.runner.patched_layers.call_context import context_of
from numpy.typing import NDArray

from ..support import kernel_models, tiny

pytestmark = kernel_models.needed

NAMES = ("llama", "qwen3")
Logits = NDArray[np.float32]


@pytest.fixture(autouse=True)
def originals() -> Iterator[None]:
    with kernel_models.originals():
        yield


def tokens(*shape: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, tiny.VOCABULARY, shape).astype(np.int32)


def fed(network: Any, caches: Caches, ids: NDArray[np.int32]) -> Logits:
    """Logits [B, T, V] of tokens [B, T] behind what the caches hold."""
    return np.array(network(mx.array(ids), cache=caches))


def prefilled(network: Any, prompts: list[NDArray[np.int32]]) -> Caches:
    """Caches of prompts of unlike length, fed in two calls with pads behind."""
    width, lengths = max(map(len, prompts)), [len(prompt) for prompt in prompts]
    ids = np.stack([np.pad(prompt, (0, width - len(prompt))) for prompt in prompts])
    caches = make_caches(network, len(prompts), padded=True)
    for layer in caches:
        layer.prepare(lengths=lengths, right_padding=[width - n for n in lengths])
    for part in (ids[:, : width // 2], ids[:, width // 2 :]):
        fed(network, caches, part)
    finish_padding(caches)
    return caches


def decoded(network: Any, caches: Caches, ids: NDArray[np.int32]) -> Logits:
    """Logits [B, T, V] of tokens [B, T] fed one at a time."""
    return np.concatenate([fed(network, caches, ids[:, i : i + 1]) for i in range(ids.shape[1])], axis=1)


def a_long_decode(network: Any) -> Logits:
    return decoded(network, prefilled(network, [tokens(n, seed=n) for n in (3, 17, 40)]), tokens(3, STEP + 9))


def rows_that_leave_and_join(network: Any) -> Logits:
    caches = prefilled(network, [tokens(n, seed=n) for n in (30, 5, 12, 9)])
    first = decoded(network, caches, tokens(4, 3, seed=1))
    select(caches, [3, 1], 4, padded=True)
    caches = join_caches([caches, prefilled(network, [tokens(50, seed=7)])])
    second = decoded(network, caches, tokens(3, 4, seed=2))
    return np.concatenate([first.reshape(-1, tiny.VOCABULARY), second.reshape(-1, tiny.VOCABULARY)])


def forks(network: Any) -> Logits:
    caches = prefilled(network, [tokens(n, seed=n) for n in (11, 6)])
    select(caches, [0, 0, 1, 0], 2, padded=True)
    return decoded(network, caches, tokens(4, 5, seed=3))


def forks_of_forks(network: Any) -> Logits:
    caches = prefilled(network, [tokens(11), tokens(40, seed=1), tokens(6, seed=2)])
    select(caches, [0, 0, 1, 2, 1], 3, padded=True)
    first = decoded(network, caches, tokens(5, 3, seed=3))
    select(caches, [4, 1, 1, 3, 4], 5, padded=True)
    caches = join_caches([caches, prefilled(network, [tokens(50, seed=7)])])
    second = decoded(network, caches, tokens(6, STEP + 3, seed=4))
    twins = copy.deepcopy(caches)
    select(twins, [5, 0, 0], 6, padded=True)
    third, fourth = fed(network, twins, tokens(3, 7, seed=5)), fed(network, caches, tokens(6, 5, seed=6))
    return np.concatenate([logits.reshape(-1, tiny.VOCABULARY) for logits in (first, second, third, fourth)])


def copies_that_go_on_apart(network: Any) -> Logits:
    caches = prefilled(network, [tokens(n, seed=n) for n in (11, 6)])
    twins = copy.deepcopy(caches)
    first, second = [], []
    for i in range(6):
        first.append(fed(network, caches, tokens(2, 1, seed=10 + i)))
        second.append(fed(network, twins, tokens(2, 1, seed=20 + i)))
    return np.concatenate(first + second, axis=1)


def on_top_of_bases(network: Any) -> Logits:
    base = make_caches(network, 1, padded=False)
    fed(network, base, tokens(1, 21, seed=4))
    caches = merge_caches(network, [base, make_caches(network, 1, padded=False)])
    select(caches, [0, 1, 0], 2, padded=True)
    return np.concatenate([fed(network, caches, tokens(3, 7, seed=5)), decoded(network, caches, tokens(3, 2, seed=6))], axis=1)


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "story", [a_long_decode, rows_that_leave_and_join, forks, forks_of_forks, copies_that_go_on_apart, on_top_of_bases]
)
def test_logits_are_those_of_batches_in_mlx_lm(name: str, story: Callable[[Any], Logits]):
    truth = story(tiny.build(name))
    network = kernel_models.put(name)
    assert type(make_caches(network, 1, padded=True)[0]) is RaggedKVCache
    np.testing.assert_allclose(story(network), truth, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "story",
    [
        pytest.param(a_long_decode, marks=pytest.mark.slow),
        rows_that_leave_and_join,
        pytest.param(forks_of_forks, marks=pytest.mark.slow),
        copies_that_go_on_apart,
    ],
)
def test_layers_that_the_kernel_leaves_alone_get_copies(name: str, story: Callable[[Any], Logits], monkeypatch: pytest.MonkeyPatch):
    truth = story(tiny.build(name))
    network = kernel_models.put(name)
    monkeypatch.setattr(kv_cache, "serves", lambda layer: True)
    block = cpu_blocks.block_of
    for refused in (network.layers[1], *network.layers):  # one layer of them, then all
        monkeypatch.setattr(cpu_blocks, "block_of", lambda layer, refused=refused: None if layer is refused else block(layer))
        np.testing.assert_allclose(story(network), truth, rtol=0, atol=2e-4)


@pytest.mark.skipif(not native.tiles(), reason="in vectors up to four rows are another sum")
@pytest.mark.parametrize("name", NAMES)
def test_a_row_s_bits_are_the_same_in_any_batch(name: str):
    network = kernel_models.put(name)
    prompts, ids = [tokens(n, seed=n) for n in (3, 17, 40, 8)], tokens(4, STEP, seed=9)
    with context_of(network).reading_logits():  # else the BLAS makes the logits
        together = decoded(network, prefilled(network, prompts), ids)
        for row, prompt in enumerate(prompts):
            np.testing.assert_array_equal(decoded(network, prefilled(network, [prompt]), ids[row : row + 1])[0], together[row])


def test_rows_that_stay_are_neither_copied_nor_padded():
    network = kernel_models.put("llama")
    caches = prefilled(network, [tokens(n, seed=n) for n in (30, 5, 12)])
    rows: Any = caches[0]
    before = rows.slabs[1]
    select(caches, [1], 3, padded=True)
    caches = join_caches([caches, prefilled(network, [tokens(200, seed=7)])])
    fed(network, caches, tokens(2, 1))
    assert rows.slabs[0] is before
    assert rows.slabs[0].array.shape[2] == STEP
    assert rows.lengths.tolist() == [6, 201]


def test_rows_that_are_forked_begin_with_one_copy_and_no_other_is_touched():
    network = kernel_models.put("llama")
    caches = prefilled(network, [tokens(9), tokens(12)])
    rows: Any = caches[0]
    first, second = rows.slabs
    before = first.array.copy()
    select(caches, [0, 1, 0], 2, padded=True)
    fed(network, caches, tokens(3, 1))
    assert [None if front is None else (front.slab, front.length) for front in rows.fronts] == [(first, 9), None, (first, 9)]
    assert rows.slabs[1] is second
    assert not np.shares_memory(rows.slabs[0].array, rows.slabs[2].array)
    np.testing.assert_array_equal(first.array[:, :, :9], before[:, :, :9])


def test_a_fork_of_a_fork_begins_with_one_copy_of_all():
    network = kernel_models.put("llama")
    caches = prefilled(network, [tokens(9)])
    rows: Any = caches[0]
    select(caches, [0, 0], 1, padded=True)
    select(caches, [0, 1, 1], 2, padded=True)  # nothing has come in between: the same front
    assert {id(front.slab) for front in rows.fronts} == {id(rows.fronts[0].slab)}
    fed(network, caches, tokens(3, 2))
    select(caches, [1, 1, 0], 3, padded=True)
    fed(network, caches, tokens(3, 1))
    assert [front.length for front in rows.fronts] == [11, 11, 9]
    assert rows.lengths.tolist() == [12, 12, 12]
    assert rows.fronts[0].slab is rows.fronts[1].slab


def test_an_adapted_layer_keeps_mlx_lm_s_batches(monkeypatch: pytest.MonkeyPatch):
    network = kernel_models.put("llama")
    attn = network.layers[0].self_attn
    with monkeypatch.context() as patch:  # the layer is in its place again before the classes of ours are taken off
        patch.setitem(attn, "q_proj", type("Adapted", (type(attn.q_proj),), {})(*reversed(attn.q_proj.weight.shape)))
        assert type(make_caches(network, 1, padded=True)[0]) is not RaggedKVCache


def test_rows_of_unlike_lengths_grow_together():
    cache = RaggedKVCache.of([(np.zeros((1, n, 4), np.float32), np.zeros((1, n, 4), np.float32)) for n in range(1, 33)])
    found = [cache.rooms(1, 1, 4)]
    for _ in range(STEP):
        cache.advance(1)
        rooms = cache.rooms(1, 1, 4)
        if rooms is not found[-1]:
            found.append(rooms)
    assert len(found) == 3  # one by one they would be looked up 33 times
    assert (found[-1].sizes == 2 * STEP).all()


def test_rows_are_looked_up_anew_where_memory_ran_out_between_two(monkeypatch: pytest.MonkeyPatch):
    caches = prefilled(kernel_models.put("llama"), [tokens(n, seed=n) for n in (30, 5)])
    cache: Any = caches[0]
    assert cache.rooms(1, 2, 16) is cache.placed
    made, larger = [0], ragged_kv_cache._larger  # pyright: ignore[reportPrivateUsage]

    def fails(*given: Any) -> Any:
        made[0] += 1
        if made[0] > 1:
            raise MemoryError
        return larger(*given)

    monkeypatch.setattr(ragged_kv_cache, "_larger", fails)
    with pytest.raises(MemoryError):
        cache.rooms(STEP, 2, 16)
    assert cache.placed is None
