"""Tests attention in a processor's tiles, which add positions up a step at a time: a row's bits do not depend on where a call begins."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.kernels.blocks.decoder_block import Block, Fronts
from numpy.typing import NDArray

from .decoder_blocks import Shape, called, case, rooms_of
from .test_decoder_block import check

pytestmark = pytest.mark.skipif(not native.tiles(), reason="it serves processors that multiply in tiles")

DEEP = 800  # positions: more than are multiplied at once


@pytest.mark.parametrize("width", [16, 24, 64, 72, 128])
@pytest.mark.parametrize(("heads", "kv"), [(6, 2), (2, 2), (9, 1), (4, 1)])
def test_long_rows_agree_with_the_specification(width: int, heads: int, kv: int):
    check(case(Shape(rows=2, t=35, used=DEEP, heads=heads, kv=kv, width=width, half=width // 2)), "causal")


@pytest.mark.parametrize("front", [31, 32, 40, DEEP])
@pytest.mark.parametrize("less", [0, 9])
def test_rows_behind_a_prefix_have_the_bits_of_rows_that_hold_it_themselves(front: int, less: int):
    """All rows share it, or the last one less of it."""
    lengths = np.array([front, front, front - less])
    c = case(Shape(rows=3, t=19, used=7, heads=6, width=64, half=32))
    held = [np.random.default_rng(i).standard_normal((2, front, 64)).astype(np.float32) for i in range(2)]
    own = [np.concatenate([np.array(array), np.zeros((3, 2, 19, 64), np.float32)], axis=2) for array in (c.keys, c.values)]
    at = [np.full(3, array.ctypes.data) for array in held]
    rooms = replace(rooms_of(own[0], own[1], 7), fronts=Fronts(at[0], at[1], np.full(3, front), lengths))
    found = np.array(Block(c.weights, c.constants)(c.x, rooms, lengths + 7, "causal"))
    for row, length in enumerate(lengths.tolist()):
        alone = replace(c, x=c.x[row : row + 1], offset=length + 7)
        alone.keys, alone.values = (
            mx.concatenate([mx.array(prefix[None, :, :length]), array[row : row + 1]], axis=2)
            for prefix, array in zip(held, (c.keys, c.values), strict=True)
        )
        np.testing.assert_array_equal(found[row], called(alone, "causal")[0][0])


@pytest.mark.parametrize("parts", [[2, 43], [17, 28], [40, 3, 2]])
def test_parts_of_a_prompt_have_the_bits_of_one_call(parts: list[int]):
    t = sum(parts)
    c = case(Shape(rows=2, t=t, heads=6, width=64, half=32))

    def found(calls: list[int]) -> NDArray[np.float32]:
        keys, values = (np.zeros((2, 2, t, 64), np.float32) for _ in range(2))
        made, at = list[mx.array](), 0
        for some in calls:
            made.append(Block(c.weights, c.constants)(c.x[:, at : at + some], rooms_of(keys, values, at), np.array([at]), "causal"))
            at += some
        return np.concatenate([np.array(each) for each in made], axis=1)

    np.testing.assert_array_equal(found(parts), found([t]))
