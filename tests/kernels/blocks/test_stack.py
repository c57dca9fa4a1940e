"""Tests blocks in one call: the bits of one call a block, the norm behind them, what is counted, and caches that are full."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import elementwise, native
from mlx_bulk.kernels.blocks.decoder_block import Block, Rooms
from mlx_bulk.kernels.blocks.decoder_stack import FinalNorm, Stack
from numpy.typing import NDArray

from .decoder_blocks import HELD, Shape, case, rooms_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

SHAPES = [Shape(rows=3), Shape(rows=3, normed=True, biased=True), Shape(rows=3, hidden=96, kv=4)]


def rooms(seed: int, kv: int, used: int, size: int) -> tuple[list[NDArray[np.float32]], Rooms]:
    """Caches of three rows with ``used`` positions of ``size``."""
    rng = np.random.default_rng(seed)
    arrays = [np.full((3, kv, size, 16), HELD, np.float32) for _ in range(2)]
    for array in arrays:
        array[:, :, :used] = rng.standard_normal((3, kv, used, 16))
    return arrays, rooms_of(arrays[0], arrays[1], used)


@pytest.mark.parametrize("t", [1, 5])
def test_it_equals_a_call_of_each_block(t: int):
    cases = [case(shape) for shape in SHAPES]
    blocks = [Block(each.weights, each.constants) for each in cases]
    x = cases[0].x[:, :t]
    truth, one_by_one = x, []
    for seed, block in enumerate(blocks):
        arrays, own = rooms(seed, block.kv, 4, 12)
        truth = block(truth, own, np.full(3, 4, np.int64), None if t == 1 else "causal")
        one_by_one.append(arrays)
    arrays, own = zip(*(rooms(seed, block.kv, 4, 12) for seed, block in enumerate(blocks)), strict=True)
    lengths = [np.full(3, 4, np.int64) for _ in blocks]
    before = np.array(x)
    found = Stack(blocks, own, lengths)(x)
    np.testing.assert_array_equal(found, truth)
    np.testing.assert_array_equal(x, before)
    for mine, theirs in zip(arrays, one_by_one, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    held = [each.used for each in own] + lengths
    assert all((each == 4 + t).all() for each in held)


def test_where_one_cache_is_full_nothing_is_written():
    cases = [case(shape) for shape in SHAPES]
    blocks = [Block(each.weights, each.constants) for each in cases]
    arrays, own = zip(*(rooms(0, block.kv, 4, size) for block, size in zip(blocks, (8, 8, 6), strict=True)), strict=True)
    lengths = [np.full(3, 4, np.int64) for _ in blocks]
    stack, before = Stack(blocks, own, lengths), [array.copy() for pair in arrays for array in pair]
    assert stack(cases[0].x[:, :3]) is None
    for array, was in zip([array for pair in arrays for array in pair], before, strict=True):
        np.testing.assert_array_equal(array, was)
    assert all((each == 4).all() for each in [*(each.used for each in own), *lengths])
    assert stack(cases[0].x[:, :2]) is not None


def test_first_halves_are_refused():
    c = case(Shape(hidden=0))
    with pytest.raises(ValueError, match="without a feed-forward"):
        Stack([Block(c.weights, c.constants)], [], [])


@pytest.mark.parametrize("more", [0.0, 1.0])
@pytest.mark.parametrize("t", [1, 5])
def test_the_norm_behind_the_blocks_equals_the_kernel_of_its_own(t: int, more: float):
    cases = [case(shape) for shape in SHAPES]
    blocks = [Block(each.weights, each.constants) for each in cases]
    x = cases[0].x[:, :t]
    weight = mx.array(np.random.default_rng(7).uniform(0.5, 2, x.shape[-1]).astype(np.float32))
    found: list[mx.array | None] = []
    for norm in (None, FinalNorm(weight, 1e-5, more)):
        caches = [rooms(seed, block.kv, 4, 12) for seed, block in enumerate(blocks)]
        found.append(Stack(blocks, [own for _, own in caches], [np.full(3, 4, np.int64) for _ in blocks], norm)(x))
    plain, normed = found
    assert plain is not None
    np.testing.assert_array_equal(normed, elementwise.rms_norm_on_cpu(plain, weight, 1e-5, more))
