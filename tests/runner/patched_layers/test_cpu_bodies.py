"""Tests that all blocks of a step are one call, with the bits of a call a block, and that what changes in between is noticed."""

import copy
import gc
import weakref
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_map
from mlx_bulk.kernels.blocks.decoder_block import Block
from mlx_bulk.kernels.blocks.decoder_stack import Stack
from mlx_bulk.runner.caches.ragged_kv_cache import STEP
from mlx_bulk.runner.patched_layers import cpu_bodies
from mlx_bulk.runner.patched_layers.call_context import BUILT, context_of
from mlx_bulk.runner.patched_layers.layer_patching import unpatch_layers

from ..support.kernel_models import needed
from ..support.kernel_pairs import HALVES, KINDS, Both, ids

pytestmark = needed


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The columns of each call of a stack."""
    calls: list[int] = []
    run = Stack.__call__

    def noted(self: Stack, x: mx.array) -> mx.array | None:
        calls.append(x.shape[1])
        return run(self, x)

    monkeypatch.setattr(Stack, "__call__", noted)
    return calls


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The columns of each call of one block."""
    calls: list[int] = []
    run = Block.__call__

    def noted(self: Block, x: mx.array, *rest: Any) -> mx.array:
        calls.append(x.shape[1])
        return run(self, x, *rest)

    monkeypatch.setattr(Block, "__call__", noted)
    return calls


def story(both: Both) -> list[Any]:
    """Calls of several columns and of one, beyond the room that the first ones made."""
    caches = both.caches(3, padded=True)[1]
    each = [both.networks[1](ids(3, n, seed=n), cache=caches) for n in (7, 1, 1, STEP, 1, 3)]
    return [*map(np.array, each), caches[0].lengths.tolist()]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in HALVES])
def test_a_step_has_the_bits_of_a_call_a_block(kind: str, stacked: list[int], single: list[int], monkeypatch: pytest.MonkeyPatch):
    found = story(Both(kind))
    assert set(stacked) == {7, 1, STEP, 3}
    assert not single
    stacked.clear()
    monkeypatch.setattr(cpu_bodies, "_steps", lambda *_: False)
    truth = story(Both(kind))
    assert not stacked
    assert single
    assert found[-1] == truth[-1]
    for mine, theirs in zip(found[:-1], truth[:-1], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_kernel_is_noted(stacked: list[int]):
    both = Both()
    both.call(ids(2, 3), both.caches(2, padded=True))
    assert stacked == [3]
    assert {"block", "norm"} <= both.used


def test_a_body_without_its_blocks_in_one_call_calls_each(stacked: list[int], single: list[int]):
    """Caches of mlx-lm's, calls without any, and calls that are told to compute layer by layer."""
    both = Both()
    both.call(ids(2, 3), both.caches(2, padded=False))
    both.networks[1](ids(2, 3))
    assert len(single) == 4
    single.clear()
    with context_of(both.networks[1]).layer_by_layer():
        both.call(ids(2, 3), both.caches(2, padded=True), fast=False)
    assert not single
    assert not stacked


def test_calls_with_pads_are_left_to_the_blocks(stacked: list[int], single: list[int]):
    both = Both()
    caches = both.caches(2, padded=True)
    for own in caches:
        for layer in own:
            layer.prepare(lengths=[5, 3], right_padding=[0, 2])
    both.call(ids(2, 5), caches, lengths=[5, 3])
    for own in caches:
        for layer in own:
            layer.finalize()
    assert (stacked, len(single)) == ([], 2)
    both.steps(2, 3, caches)
    assert (stacked, len(single)) == ([1, 1, 1], 2)


def test_a_projection_that_gets_another_class_is_noticed(stacked: list[int]):
    class Doubled(nn.Linear):
        def __call__(self, x: mx.array) -> mx.array:
            return 2 * super().__call__(x)

    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    stacked.clear()
    for each in both.networks:
        each.model.layers[1].mlp.up_proj.__class__ = Doubled
    both.call(ids(2, 1, seed=3), caches)
    assert not stacked


def test_a_bias_that_comes_is_noticed(stacked: list[int]):
    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    for each in both.networks:
        each.model.layers[0].self_attn.q_proj.bias = mx.arange(64) / 64
    both.call(ids(2, 1, seed=3), caches)
    assert stacked == [1, 1, 1]


def test_batches_that_take_turns_are_kept_apart():
    both = Both()
    first, second = both.caches(2, padded=True), both.caches(3, padded=True)
    for turn in range(3):
        both.call(ids(2, 2, seed=turn), first)
        both.call(ids(3, 1, seed=turn), second)


def test_embeddings_in_place_of_ids(stacked: list[int]):
    both = Both()
    given = mx.array(np.random.default_rng(0).normal(0, 1, (2, 3, 64)).astype(np.float32))
    before = np.array(given)
    results = [
        each(ids(2, 3), cache=caches, input_embeddings=given)
        for each, caches in zip(both.networks, both.caches(2, padded=True), strict=True)
    ]
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=1e-4 * float(np.array(results[0]).std()))
    np.testing.assert_array_equal(given, before)
    assert stacked == [3]


class _DoubledNorm(nn.RMSNorm):
    """A class that the kernel does not know, and must call."""

    def __call__(self, x: mx.array) -> mx.array:
        return 2 * super().__call__(x)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda network: network.model.norm.update({"weight": mx.arange(64) / 32}), id="its weight"),
        pytest.param(lambda network: setattr(network.model.norm, "__class__", _DoubledNorm), id="its class"),
        pytest.param(lambda network: setattr(network.model, "norm", _DoubledNorm(64)), id="another norm"),
    ],
)
def test_the_norm_behind_the_blocks_is_watched(change: Any, stacked: list[int]):
    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    both.each(change)
    both.steps(2, 1, caches)
    assert stacked == [1] * 3


def test_a_norm_whose_weight_is_replaced_is_noticed(stacked: list[int]):
    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    both.each(lambda network: network.model.layers[0].input_layernorm.update({"weight": mx.arange(64) / 32}))
    both.steps(2, 1, caches)
    both.each(lambda network: network.model.layers[1].post_attention_layernorm.update({"weight": mx.arange(64) / 16}))
    both.steps(2, 1, caches)
    assert stacked == [1] * 4


def test_a_norm_in_half_precision_is_left_to_mlx(stacked: list[int]):
    both = Both()
    both.each(lambda network: network.model.norm.update({"weight": mx.ones(64, mx.bfloat16)}))
    both.steps(2, 3, both.caches(2, padded=True))
    assert stacked == [1] * 3


def test_a_network_that_nobody_holds_is_freed_at_once():
    both = Both()
    both.steps(2, 2, both.caches(2, padded=True))
    assert BUILT in vars(both.networks[1].model)
    norm = weakref.ref(both.networks[1].model.norm)
    gc.disable()
    try:
        del both
        assert norm() is None
    finally:
        gc.enable()


def test_a_layer_that_is_replaced_or_left_out_is_noticed(stacked: list[int]):
    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    for each in both.networks:
        each.model.layers[1] = each.model.layers[0]
    both.steps(2, 1, caches)
    for each in both.networks:
        each.model.layers = each.model.layers[:1]
    both.steps(2, 1, [own[:1] for own in caches])
    assert stacked == [1] * 4


def test_a_block_of_a_class_of_its_own_is_called(stacked: list[int]):
    both = Both()
    block: Any = type(both.networks[1].model.layers[1])
    seen: list[int] = []

    class Watched(block):
        def __call__(self, *given: Any, **named: Any) -> mx.array:
            seen.append(1)
            return super().__call__(*given, **named)

    both.networks[1].model.layers[1].__class__ = Watched
    both.steps(2, 3, both.caches(2, padded=True))
    assert len(seen) == 3
    assert not stacked


@pytest.mark.parametrize("layer", [None, 1])
def test_a_network_in_training_is_left_to_mlx(stacked: list[int], layer: int | None):
    both = Both()
    caches = both.caches(2, padded=True)
    for each in both.networks:
        (each if layer is None else each.model.layers[layer]).train()
    both.call(ids(2, 3), caches, fast=layer is not None)
    assert not stacked


def test_a_copied_network_steps_with_weights_of_its_own():
    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    first, both.networks = both.networks, copy.deepcopy(both.networks)
    both.each(lambda network: network.update(tree_map(lambda w: w * 1.1, network.parameters())))
    both.steps(2, 2, both.caches(2, padded=True))
    both.networks = first
    both.steps(2, 2, caches)


def test_weights_that_are_gone_are_not_kept():
    """Also where no step follows on caches with memory of their own."""
    both = Both()
    body = both.networks[1].model
    both.steps(2, 2, both.caches(2, padded=True))
    assert BUILT in vars(body)
    both.each(lambda network: network.update(tree_map(lambda w: w * 1.1, network.parameters())))
    both.call(ids(2, 2), both.caches(2, padded=False))
    assert BUILT not in vars(body)


def test_the_class_and_what_was_built_go_with_the_others():
    both = Both()
    caches = both.caches(2, padded=True)
    both.steps(2, 2, caches)
    unpatch_layers(both.networks[1])
    assert type(both.networks[1].model) in cpu_bodies.DECODER_BODIES
    assert BUILT not in vars(both.networks[1].model)
