"""Tests a decoder block in one call against its specification: shapes, RoPE, norms, masks, and what it appends to a cache."""

import threading
from dataclasses import fields, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import backend, elementwise, linear, native
from mlx_bulk.kernels.attention import Mask
from mlx_bulk.kernels.blocks import decoder_block
from mlx_bulk.kernels.blocks.decoder_block import Block, Weights
from numpy.typing import NDArray

from ...rounded_numbers import rounded
from .decoder_blocks import AROUND, HELD, Case, Shape, called, case, masks, packed_apart, rooms_of, rounded_case

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

ATOL = 1e-5  # of numbers around 1 to 4: rounding of five products in a row
ROUNDING = 2e-6  # of the largest number of an output: of 6,000 layouts ours was off by up to 1.1e-6 of it, float32 in mlx by as much


def check(c: Case, mask: Mask = None) -> None:
    """The output, what is written behind what is held, and that nothing else is. The specification computes in float64."""
    truth = in_float64(c, mask)
    out, *rooms = called(c, mask)
    used, t = c.keys.shape[2], c.x.shape[1]
    assert np.abs(truth[0]).max() > 1
    np.testing.assert_allclose(out, truth[0], rtol=0, atol=ROUNDING * np.abs(truth[0]).max())
    for room, held, right in zip(rooms, (c.keys, c.values), truth[1:], strict=True):
        assert np.array_equal(room[:, :, :used], np.array(held))
        np.testing.assert_allclose(room[:, :, used : used + t], right[:, :, used:], rtol=0, atol=ROUNDING * np.abs(right).max())
        assert (room[:, :, used + t :] == HELD).all()


def in_float64(c: Case, mask: Mask) -> list[NDArray[np.float64]]:
    """The specification's output, keys and values."""
    with mx.stream(mx.cpu):
        held: dict[str, Any] = {field.name: getattr(c.weights, field.name) for field in fields(Weights)}
        wide: dict[str, Any] = {name: None if array is None else array.astype(mx.float64) for name, array in held.items()}
        weights = Weights(**wide)
        x, keys, values = (array.astype(mx.float64) for array in (c.x, c.keys, c.values))
        return [np.array(made) for made in decoder_block.reference(x, weights, c.constants, keys, values, c.offset, mask)]


KINDS = list(masks(1, 1, 1, 1))


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        Shape, d=st.sampled_from([24, 48, 65]), hidden=st.sampled_from([31, 70, 128]), biased=st.booleans(), normed=st.booleans(),
        neighbours=st.booleans(), rows=st.sampled_from([1, 3, 40]), t=st.sampled_from([1, 2, 17]), used=st.sampled_from([0, 1, 50]),
    ),
    st.sampled_from([(4, 2), (3, 1), (2, 2), (9, 3)]), st.sampled_from([(16, 8), (16, 3), (20, 10), (20, 4), (64, 32), (64, 20)]),
    st.sampled_from(KINDS), st.booleans(),
)  # fmt: skip
def test_any_shape_agrees_with_the_specification(shape: Shape, heads: tuple[int, int], widths: tuple[int, int], kind: str, apart: bool):
    shape = replace(shape, heads=heads[0], kv=heads[1], width=widths[0], half=widths[1])
    offset = mx.arange(shape.rows) - 2 + shape.used if apart else None
    check(case(shape, offset), masks(shape.rows, shape.heads, shape.t, shape.used + shape.t)[kind])


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Shape, d=st.sampled_from([24, 65]), biased=st.booleans(), normed=st.booleans(), around=st.sampled_from(list(AROUND.values())),
        wide_norms=st.booleans(), norm_more=st.sampled_from([0.0, 1.0]), residual=st.sampled_from([1.0, 0.22]),
        cap=st.sampled_from([0.0, 2.0]), magnitude=st.sampled_from([1.0, 1.2]), neighbours=st.booleans(),
        activation=st.sampled_from(list(elementwise.ACTIVATIONS)),
        rows=st.sampled_from([1, 3]), t=st.sampled_from([1, 17, 200]), hidden=st.sampled_from([70, 0]),
    ),
    st.sampled_from(KINDS),
)  # fmt: skip
def test_any_layout_agrees_with_the_specification(shape: Shape, kind: str):
    check(case(shape), masks(shape.rows, shape.heads, shape.t, shape.t)[kind])


@pytest.mark.parametrize(("rows", "t"), [(2, 1), (32, 1), (3, 70 * backend.threads())])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("activation", "hidden"), [*((name, 96) for name in elementwise.ACTIVATIONS), ("silu", 112), ("silu", 416)])
def test_weights_that_are_packed_as_one_give_the_same_bits(rows: int, t: int, biased: bool, activation: str, hidden: int):
    """Also where the second of two begins within a panel of 24 or 48 outputs, and where the hidden layer is wider than a block."""
    c = case(Shape(rows=rows, t=t, used=3, hidden=hidden, biased=biased, normed=True, activation=activation))
    rooms = [np.full((rows, 2, t + 10, 16), 0.5, np.float32) for _ in range(2)]
    of, held = rooms_of(rooms[0], rooms[1], 3), dict[str, Any]()
    suffixes = ("", "_bias") if biased else ("",)
    for joined, names in {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}.items():
        whole = {suffix: rounded(mx.concatenate([getattr(c.weights, name + suffix) for name in names])) for suffix in suffixes}
        mx.eval(whole)
        begin = 0
        for name in names:
            end = begin + getattr(c.weights, name).shape[0]
            c.weights = replace(c.weights, **{name + suffix: array[begin:end] for suffix, array in whole.items()})
            begin = end
        held[joined] = linear.packed(whole[""], whole.get("_bias"))
    ways = [None, held, *(held | {joined: np.zeros_like(held[joined])} for joined in held)]
    plain, packed, *others = (np.array(Block(c.weights, c.constants, each)(c.x, of, np.array([3]), "causal")) for each in ways)
    assert np.array_equal(plain, packed)
    within = native.tiles() and activation == "silu" and hidden % 32 > 0  # tiles then cannot take the second of two
    reads = [False, False] if rows * t <= 4 and not native.tiles() else [True, not within]
    assert [bool(np.abs(other - plain).max() > 0.1) for other in others] == reads


def test_weights_that_are_packed_as_one_and_lie_apart_are_refused():
    c = case(Shape())
    held = linear.packed(rounded(mx.concatenate([c.weights.q, c.weights.k, c.weights.v])), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="q, k, v are packed as one, and do not lie one behind the other"):
        Block(c.weights, c.constants, {"qkv": held})


@pytest.mark.parametrize(("rows", "t"), [(2, 1), (32, 1), (3, 70)])
@pytest.mark.parametrize("biased", [False, True])
def test_packed_weights_give_the_same_bits(rows: int, t: int, biased: bool):
    """Those of the MLP's width, too, of which not all products are packed."""
    for hidden in (70, 96):
        c = rounded_case(Shape(rows=rows, t=t, used=3, hidden=hidden, biased=biased))
        rooms = [np.full((rows, 2, 80, 16), 0.5, np.float32) for _ in range(2)]
        of = rooms_of(rooms[0], rooms[1], 3)
        held = {name: packing if linear.packs(getattr(c.weights, name)) else None for name, packing in packed_apart(c).items()}
        spoilt = {name: packing if packing is None else np.zeros_like(packing) for name, packing in held.items()}
        plain, packed, other = (
            np.array(Block(c.weights, c.constants, each)(c.x, of, np.array([3]), "causal")) for each in (None, held, spoilt)
        )
        assert np.array_equal(plain, packed)
        assert np.array_equal(plain, other) == (rows * t <= 4 and not native.tiles())


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("residual", "hidden"), [(1.0, 416), (0.5, 416), (1.0, 0)])
@pytest.mark.parametrize("d", [48, 400, 1600])
def test_chunks_of_many_tokens_give_the_same_bits(around: str, residual: float, hidden: int, d: int):
    """With packed weights each thread takes tokens of its own, unless the network is so wide that few of them fit its cache."""
    t = 70 * backend.threads()
    c = rounded_case(Shape(d=d, rows=3, t=t, used=3, hidden=hidden, biased=d == 400, around=AROUND[around], residual=residual))
    found: list[Any] = []
    for held in (None, packed_apart(c)):
        rooms = [np.full((3, 2, t + 10, 16), 0.5, np.float32) for _ in range(2)]
        real = np.array([t, 0, t - 9], np.int64)
        out = Block(c.weights, c.constants, held)(c.x, rooms_of(rooms[0], rooms[1], 3), np.array([3]), "causal", real)
        found.append([np.array(out), *rooms])
    assert all(map(np.array_equal, *found))


@pytest.mark.parametrize(("rows", "t"), [(1, 193), (3, 150), (40, 17)])
def test_more_positions_than_are_projected_at_once(rows: int, t: int):
    shape = Shape(rows=rows, t=t, used=4, biased=True, normed=True)
    check(case(shape, mx.arange(rows) * 3), "causal")


@pytest.mark.parametrize(("rows", "t", "neighbours"), [(1, 193, False), (3, 150, False), (3, 7, True), (40, 1, False)])
def test_given_angles_turn_each_token_of_each_row_by_its_own(rows: int, t: int, neighbours: bool):
    c = case(Shape(rows=rows, t=t, used=4, normed=True, neighbours=neighbours))
    by = np.random.default_rng(1).uniform(0, 7, (rows, t, 8)).astype(np.float32)
    angles = np.cos(by), np.sin(by)
    truth = [np.array(x) for x in decoder_block.reference(c.x, c.weights, c.constants, c.keys, c.values, 0, "causal", angles)]
    out, keys, _ = called(c, "causal", angles=angles)
    np.testing.assert_allclose(out, truth[0], rtol=0, atol=ATOL)
    np.testing.assert_allclose(keys[:, :, 4 : 4 + t], truth[1][:, :, 4:], rtol=0, atol=ATOL)
    assert np.abs(out - called(c, "causal")[0]).max() > 1e-2


@pytest.mark.parametrize("name", [field.name for field in fields(Weights) if field.name != "frequencies"])
def test_each_array_enters(name: str):
    """An array that the kernel ignores would not show where it is small."""
    c = case(Shape(biased=True, normed=True, around=AROUND["both"], used=3))
    first = called(c, "causal")
    c.weights = replace(c.weights, **{name: getattr(c.weights, name) * 1.5})
    assert max(np.abs(a - b).max() for a, b in zip(first, called(c, "causal"), strict=True)) > 1e-2
    check(c, "causal")


def test_weights_and_inputs_that_are_views():
    c = case(Shape(used=3))
    truth = called(c, "causal")
    turned: dict[str, Any] = {field.name: getattr(c.weights, field.name) for field in fields(Weights)}
    turned = {name: mx.contiguous(w.T).T if w is not None and w.ndim == 2 else w for name, w in turned.items()}
    c.weights = Weights(**turned)
    c.x, c.keys = (mx.contiguous(x.swapaxes(0, 1)).swapaxes(0, 1) for x in (c.x, c.keys))
    for found, right in zip(called(c, "causal"), truth, strict=True):
        assert np.array_equal(found, right)


def test_a_row_does_not_depend_on_other_rows():
    """Deterministic mode's promise, to the bit; not even NaN."""
    c = case(Shape(rows=5, t=3, used=20))
    first = called(c, "causal")
    c.x[1:], c.keys[1:], c.values[1:] = c.x[1:] * 1e3, mx.nan, 1e30
    for found, right in zip(called(c, "causal"), first, strict=True):
        assert np.array_equal(found[0], right[0])


def test_nan_stays_in_its_row():
    c = case(Shape(rows=4, t=6))
    c.x[2, 3, 5] = mx.nan
    nan = np.isnan(called(c, "causal")[0])
    assert nan[2, 3:].all()
    assert not np.delete(nan, 2, axis=0).any()


def test_threads_share_a_block():
    c = case(Shape(rows=1, t=1))
    made, calls = Block(c.weights, c.constants), [case(Shape(rows=n, t=2 * n)) for n in (1, 2, 3)]

    def one(c: Case) -> NDArray[np.float32]:
        keys, values = (np.zeros((*c.keys.shape[:2], 8, 16), np.float32) for _ in range(2))
        return np.array(made(c.x, rooms_of(keys, values, 0), np.zeros(1, np.int64), "causal"))

    truth, wrong = [one(c) for c in calls], list[int]()

    def many(i: int) -> None:
        wrong.extend(i for _ in range(1000) if not np.array_equal(one(calls[i]), truth[i]))

    threads = [threading.Thread(target=many, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.compiles
@pytest.mark.parametrize("what", ["x", "mask"])
def test_traced_arrays_are_refused_before_anything_is_written(what: str):
    c = case(Shape(t=1))
    made, keys, values = Block(c.weights, c.constants), np.zeros((2, 2, 4, 16), np.float32), np.zeros((2, 2, 4, 16), np.float32)
    starts = np.zeros(1, np.int64)

    def traced(y: mx.array) -> mx.array:
        x, mask = (y, None) if what == "x" else (c.x, y)
        return made(x, rooms_of(keys, values, 0), starts, mask)

    with pytest.raises(native.Traced):
        mx.compile(traced)(c.x if what == "x" else mx.zeros((2, 1, 1, 1)))
    assert not keys.any()


def test_what_is_written_in_place_lies_elsewhere():
    arrays = [mx.random.normal((4, 4)) for _ in range(3)]
    places = native.Places(arrays)
    assert places.hold(arrays)
    assert not places.hold(arrays[:2])
    assert not places.hold([*arrays[:2], mx.zeros((4, 4))])
    arrays[1] += 1
    assert not places.hold(arrays)
