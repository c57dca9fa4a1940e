"""Tests a decoder block on rows that differ: pads after some, and prefixes of their own or shared."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import native
from mlx_bulk.kernels.blocks.decoder_block import Block, Fronts
from numpy.typing import NDArray

from .decoder_blocks import HELD, Shape, called, case, masks, rooms_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")


@pytest.mark.parametrize("t", [1, 9])
def test_pads_are_not_computed(t: int):
    """Zeros stand in their place, and no row's bits depend on them."""
    c, real = case(Shape(rows=3, t=t)), np.array([t, t // 2, 0])
    c.x[1, t // 2 :] = c.x[2] = mx.nan
    keys, values = (np.full((*c.keys.shape[:2], t + 2, 16), HELD, np.float32) for _ in range(2))
    out = np.array(Block(c.weights, c.constants)(c.x, rooms_of(keys, values, 0), np.zeros(1, np.int64), "causal", real))
    for row, n in enumerate(real.tolist()):
        assert not out[row, n:].any()
        assert not keys[row, :, n:t].any()
        if n and native.tiles():
            own = [np.zeros((1, *keys.shape[1:]), np.float32) for _ in range(2)]
            one = Block(c.weights, c.constants)(c.x[row : row + 1, :n], rooms_of(own[0], own[1], 0), np.zeros(1, np.int64), "causal")
            np.testing.assert_array_equal(out[row, :n], one[0])
    assert (keys[:, :, t:] == HELD).all()


def fronts_of(held: list[NDArray[np.float32]], rows: int, front: int) -> Fronts:
    """``front`` positions of keys and values [K, S, D] before each of some rows."""
    of_all = (held[0].ctypes.data, held[1].ctypes.data, held[0].shape[1], front)
    return Fronts(*(np.full(rows, n, np.int64) for n in of_all))


@pytest.mark.parametrize("front", [1, 15, 16, 63, 64, 100])
@pytest.mark.parametrize(("t", "used"), [(1, 0), (2, 0), (1, 3), (17, 3), (40, 0)])
@pytest.mark.parametrize("kind", ["causal", "bool of all", "added to all"])
@pytest.mark.parametrize("width", [16, 20])
def test_a_shared_prefix_equals_copies(front: int, t: int, used: int, kind: str, width: int):
    c = case(Shape(rows=3, t=t, used=front + used, width=width, heads=9, kv=3))
    for array in (c.keys, c.values):
        array[1:, :, :front] = array[:1, :, :front]
    mask = masks(3, 9, t, front + used + t)[kind]
    truth, *copies = called(c, mask)
    held = [np.full((3, front + 2, width), HELD, np.float32) for _ in range(2)]
    own = [np.full((3, 3, used + t + 3, width), HELD, np.float32) for _ in range(2)]
    for ahead, behind, array in zip(held, own, (c.keys, c.values), strict=True):
        ahead[:, :front], behind[:, :, :used] = np.array(array[0, :, :front]), np.array(array[:, :, front:])
    before = [array.copy() for array in held]
    rooms = replace(rooms_of(own[0], own[1], used), fronts=fronts_of(held, 3, front))
    found = np.array(Block(c.weights, c.constants)(c.x, rooms, np.array([front + used], np.int64), mask))
    np.testing.assert_array_equal(found, truth)
    for behind, copied in zip(own, copies, strict=True):
        np.testing.assert_array_equal(behind, copied[:, :, front:])
    for ahead, left in zip(held, before, strict=True):
        np.testing.assert_array_equal(ahead, left)


@pytest.mark.parametrize("real", [[17, 1, 0], [1, 1, 1], [2, 17, 16], [1, 17, 1], [0, 17, 16], [17, 0, 16]])
@pytest.mark.parametrize("kv", [3, 1])
def test_a_shared_prefix_before_rows_of_unlike_length(real: list[int], kv: int):
    c, front = case(Shape(rows=3, t=17, used=40, heads=9, kv=kv)), 40
    for array in (c.keys, c.values):
        array[1:] = array[:1]
    held = [np.array(array[0]) for array in (c.keys, c.values)]

    def found(x: mx.array, lengths: list[int], at: Fronts | None) -> NDArray[np.float32]:
        used = 0 if at else front
        own = [np.zeros((len(lengths), kv, used + 17, 16), np.float32) for _ in range(2)]
        for behind, ahead in zip(own, held, strict=True):
            behind[:, :, :used] = ahead[:, :used]
        rooms = replace(rooms_of(own[0], own[1], used), fronts=at)
        return np.array(Block(c.weights, c.constants)(x, rooms, np.array([front], np.int64), "causal", np.array(lengths)))

    ours = found(c.x, real, fronts_of(held, 3, front))
    np.testing.assert_array_equal(ours, found(c.x, real, None))
    for row, n in enumerate(real):
        assert not ours[row, n:].any()


@pytest.mark.parametrize("t", [1, 17])
@pytest.mark.parametrize("groups", [3, 9])
def test_runs_of_rows_with_one_prefix_equal_copies(t: int, groups: int):
    """What is made of a prefix serves all rows of a run."""
    of_rows, front = np.array([0] * 9 + [1] * 3 + [2] + [0] * 7), 40
    c = case(Shape(rows=len(of_rows), t=t, used=5, heads=2 * groups, kv=2))
    held = [np.random.default_rng(i).standard_normal((3, 2, front, 16)).astype(np.float32) for i in range(2)]
    lengths = np.array([front, front, 0])[of_rows]
    own = [np.concatenate([np.array(array), np.zeros((len(of_rows), 2, t, 16), np.float32)], axis=2) for array in (c.keys, c.values)]
    at = [side.ctypes.data + of_rows * side[0].nbytes for side in held]
    rooms = replace(rooms_of(own[0], own[1], 5), fronts=Fronts(at[0], at[1], np.full(len(of_rows), front), lengths))
    found = np.array(Block(c.weights, c.constants)(c.x, rooms, lengths + 5, "causal"))
    for which in (0, 1):
        rows = np.flatnonzero(of_rows == which)
        alone = replace(c, x=c.x[mx.array(rows)], offset=front + 5)
        alone.keys, alone.values = (
            mx.concatenate([mx.array(np.repeat(side[which, None], len(rows), axis=0)), array[mx.array(rows)]], axis=2)
            for side, array in zip(held, (c.keys, c.values), strict=True)
        )
        np.testing.assert_allclose(found[rows], called(alone, "causal")[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("t", [1, 17])
@pytest.mark.parametrize("groups", [3, 9])
@pytest.mark.parametrize("which", [[0, 1, 0], [0, 2, 1], [2, 0, 0], [0, 2, 3], [0, 3, 0], [3, 0, 1], [4, 4, 3], [4, 3, 0]])
def test_rows_that_begin_with_something_each(which: list[int], groups: int, t: int):
    """Two things of one length, some of what another has, and nothing."""
    rng = np.random.default_rng(8)
    two = [rng.standard_normal((2, 2, 40, 16)).astype(np.float32) for _ in range(2)]
    fronts = [(two[0], 40), (two[1], 40), (two[0], 23), (two[0], 0), (two[1], 0)]
    c = case(Shape(rows=3, t=t, used=5, heads=2 * groups, kv=2))
    taken = [fronts[i] for i in which]
    lengths = np.array([length for _, length in taken])
    own = [np.full((3, 2, 5 + t + 1, 16), HELD, np.float32) for _ in range(2)]
    for behind, array in zip(own, (c.keys, c.values), strict=True):
        behind[:, :, :5] = np.array(array)
    keys, values = (np.array([held[side].ctypes.data for held, _ in taken]) for side in (0, 1))
    rooms = replace(rooms_of(own[0], own[1], 5), fronts=Fronts(keys, values, np.full(3, 40), lengths))
    found = np.array(Block(c.weights, c.constants)(c.x, rooms, lengths + 5, "causal"))
    for row, (held, length) in enumerate(taken):
        alone = replace(c, x=c.x[row : row + 1], offset=length + 5)
        alone.keys, alone.values = (
            mx.concatenate([mx.array(side[None, :, :length]), array[row : row + 1]], axis=2)
            for side, array in zip(held, (c.keys, c.values), strict=True)
        )
        np.testing.assert_allclose(found[row], called(alone, "causal")[0][0], rtol=0, atol=1e-5)


@pytest.fixture
def without_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library as it is where a processor does not multiply in tiles."""
    options = [option for option in native.COMMAND if "SOFTWARE_TILES" not in option]
    monkeypatch.setattr(native, "COMMAND", (*options, "-mno-amx-bf16"))
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(not native.tiles(), reason="elsewhere there are none")
@pytest.mark.usefixtures("without_tiles")
@pytest.mark.parametrize("t", [7, 100])
def test_how_many_pads_there_are_changes_no_bit(t: int):
    """Deterministic mode fixes a call's shape, not its rows' lengths."""
    assert not native.tiles()
    c = case(Shape(rows=2, t=t))

    def found(real: Sequence[int]) -> NDArray[np.float32]:
        keys, values = (np.zeros((2, 2, t, 16), np.float32) for _ in range(2))
        rooms = rooms_of(keys, values, 0)
        return np.array(Block(c.weights, c.constants)(c.x, rooms, np.zeros(1, np.int64), "causal", np.array(real)))[1, :2]

    truth = found([t, 2])
    for other in range(t):
        np.testing.assert_array_equal(found([other, 2]), truth)
