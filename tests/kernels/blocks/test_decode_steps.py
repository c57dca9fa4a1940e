"""Tests decode steps of many rows, in which each thread takes rows of its own through all blocks: the bits of one call a block."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.kernels import backend, elementwise, native
from mlx_bulk.kernels.blocks.decoder_block import Block, Fronts, Rooms
from mlx_bulk.kernels.blocks.decoder_stack import FinalNorm, Stack
from numpy.typing import NDArray

from .decoder_blocks import AROUND, HELD, Shape, packed_apart, rooms_of, rounded_case

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

ROWS = 8 * backend.threads() ** 2 + 1  # so many rows are shared out, and not evenly
ROOM = 70
MANY_QUERIES, WIDE = "nine queries for a key", "so wide that few rows fit a cache"
SHAPES = {
    "plain": Shape(hidden=96),
    "biased, with all norms": Shape(hidden=416, biased=True, normed=True, around=AROUND["both"]),
    "without norms, its results multiplied": Shape(hidden=96, around=(), residual=0.5, activation="gelu_tanh"),
    MANY_QUERIES: Shape(hidden=96, heads=18),
    WIDE: Shape(d=12_000, hidden=96),
}


def caches(seed: int, used: NDArray[np.int64]) -> tuple[list[NDArray[np.float32]], Rooms]:
    """Of rows of unlike length, for two key heads of 16 numbers."""
    rng = np.random.default_rng(seed)
    arrays = [np.full((len(used), 2, ROOM, 16), HELD, np.float32) for _ in range(2)]
    for array in arrays:
        for row, n in enumerate(used.tolist()):
            array[row, :, :n] = rng.standard_normal((2, n, 16))
    return arrays, replace(rooms_of(arrays[0], arrays[1], 0), used=used.copy())


def prefixes(kind: str, held: list[NDArray[np.float32]]) -> Fronts | None:
    """One for all rows, or one, a shorter one or none for each; of two arrays each, keys and values."""
    if kind == "none":
        return None
    lengths = np.full(ROWS, 40) if kind == "one" else np.array([40, 23, 0] * ROWS)[:ROWS]
    which = np.zeros(ROWS, np.int64) if kind == "one" else np.arange(ROWS) % 2
    keys, values = (np.array([held[2 * at + side].ctypes.data for at in which]) for side in (0, 1))
    return Fronts(keys, values, np.full(ROWS, 40), lengths)


@pytest.mark.parametrize("front", ["none", "one", "unlike"])
@pytest.mark.parametrize("name", SHAPES)
def test_it_equals_a_call_of_each_block(name: str, front: str):
    c = rounded_case(replace(SHAPES[name], rows=ROWS, t=1))
    blocks = [Block(c.weights, c.constants, packed_apart(c)) for _ in range(2)]
    rng = np.random.default_rng(3)
    used, held = rng.integers(0, ROOM - 1, ROWS), [rng.standard_normal((2, 40, 16)).astype(np.float32) for _ in range(4)]
    at = prefixes(front, held)
    lengths = used if at is None else used + at.lengths
    truth, one_by_one = c.x, list[NDArray[np.float32]]()
    for seed, block in enumerate(blocks):
        arrays, rooms = caches(seed, used)
        truth = block(truth, replace(rooms, fronts=at), lengths)
        one_by_one += arrays
    arrays, rooms = zip(*(caches(seed, used) for seed in range(2)), strict=True)
    counted = [lengths.copy() for _ in blocks]
    norm = FinalNorm(mx.array(rng.uniform(0.5, 2, c.x.shape[-1]).astype(np.float32)), 1e-5)
    stack = Stack(blocks, [replace(each, fronts=at) for each in rooms], counted, norm)
    found, truth = stack(c.x), elementwise.rms_norm_on_cpu(truth, norm.weight, norm.eps)
    assert stack.rows_apart == (not native.tiles() and name != WIDE and (name != MANY_QUERIES or front == "none"))
    np.testing.assert_array_equal(found, truth)
    for mine, theirs in zip([array for pair in arrays for array in pair], one_by_one, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert all((each == lengths + 1).all() for each in counted)
    assert all((each.used == used + 1).all() for each in rooms)


def test_nan_stays_in_its_row():
    c = rounded_case(replace(SHAPES["plain"], rows=ROWS, t=1))
    block, rows = Block(c.weights, c.constants, packed_apart(c)), [0, ROWS // 2, ROWS - 1]

    def made(x: mx.array) -> NDArray[np.float32]:
        arrays, rooms = caches(0, np.full(ROWS, 7))
        out = np.array(Stack([block], [rooms], [np.full(ROWS, 7)])(x))
        del arrays
        return out

    broken = np.array(c.x)
    broken[rows] = np.nan
    found, truth = made(mx.array(broken)), made(c.x)
    assert np.isnan(found[rows]).all()
    np.testing.assert_array_equal(np.delete(found, rows, axis=0), np.delete(truth, rows, axis=0))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, 3])
def test_so_it_is_in_several_threads(threads: int):
    """Where tests run side by side, each process has one."""
    tests = [f"{Path(__file__)}::{test.__name__}" for test in (test_it_equals_a_call_of_each_block, test_nan_stays_in_its_row)]
    forced = f"from mlx_bulk.kernels import backend; backend._threads = {threads}"  # a BLAS has no more than there are cores
    begun = f"import sys; {forced}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", begun, "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "16 passed" in done.stdout
