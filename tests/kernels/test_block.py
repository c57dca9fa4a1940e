"""A decoder's block in one call against its specification: shapes, rotations, norms, masks, and what it writes to a cache."""

import threading
from dataclasses import dataclass, fields, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_bulk.kernels import block, native, rotation
from mlx_bulk.kernels.attention import Mask
from mlx_bulk.kernels.block import Block, Constants, Fronts, Rooms, Weights
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(native.library() is None, reason="it serves the CPU, with g++")

ATOL = 1e-5  # of numbers around 1 to 4: rounding of five products in a row
HELD = 123.0  # in the rooms behind what is used


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a block, and of a call of it."""

    d: int = 48
    heads: int = 4
    kv: int = 2
    width: int = 16
    half: int = 8  # pairs that are rotated
    hidden: int = 70
    biased: bool = False
    normed: bool = False
    neighbours: bool = False
    rows: int = 2
    t: int = 5
    used: int = 0


@dataclass(slots=True)
class Case:
    """Inputs of a block, the same for each shape."""

    weights: Weights
    constants: Constants
    x: mx.array
    keys: mx.array
    values: mx.array
    offset: int | mx.array


def case(s: Shape, offset: int | mx.array | None = None) -> Case:
    rng = np.random.default_rng(0)

    def random(*shape: int, by: float = 1.0, around: float = 0.0) -> mx.array:
        return mx.array((around + by * rng.standard_normal(shape)).astype(np.float32))

    inner, inner_kv = s.heads * s.width, s.kv * s.width
    outputs = {"q": inner, "k": inner_kv, "v": inner_kv, "o": s.d, "gate": s.hidden, "up": s.hidden, "down": s.d}
    depths = {"o": inner, "down": s.hidden}
    arrays = {name: random(n, k := depths.get(name, s.d), by=k**-0.5) for name, n in outputs.items()}
    arrays |= {f"{name}_bias": random(n) for name, n in outputs.items() if s.biased}
    arrays |= {name: random(s.d, by=0.3, around=1.0) for name in ("norm", "second_norm")}
    arrays |= {name: random(s.width, by=0.3, around=1.0) for name in ("q_norm", "k_norm") if s.normed}
    constants = Constants(s.width, s.width**-0.5, 1e-5, 2e-2, 1e-3, 1e-1, 0.5, s.neighbours)  # each another, so that none stands for one
    cached = [random(s.rows, s.kv, s.used, s.width) for _ in range(2)]
    x = random(s.rows, s.t, s.d)
    weights = Weights(**arrays, frequencies=rotation.frequencies(2 * s.half, 100.0))
    return Case(weights, constants, x, cached[0], cached[1], s.used if offset is None else offset)


def called(c: Case, mask: Mask = None, spare: int = 3) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Its output, and the rooms for keys and values as it leaves them."""
    (rows, kv, used, width), t = c.keys.shape, c.x.shape[1]
    arrays = [np.full((rows, kv, used + t + spare, width), HELD, np.float32) for _ in range(2)]
    for array, held in zip(arrays, (c.keys, c.values), strict=True):
        array[:, :, :used] = np.array(held)
    starts = np.array(c.offset, np.int64).reshape(-1)
    out = Block(c.weights, c.constants)(c.x, rooms_of(arrays[0], arrays[1], used), starts, mask)
    return np.array(out), arrays[0], arrays[1]


def rooms_of(keys: NDArray[np.float32], values: NDArray[np.float32], used: int) -> Rooms:
    """Rows [K, S, D] of arrays [B, K, S, D], all of which hold as much."""
    rows = np.arange(len(keys)) * keys[0].nbytes
    return Rooms(keys.ctypes.data + rows, values.ctypes.data + rows, np.full(len(keys), keys.shape[2]), np.full(len(keys), used))


def check(c: Case, mask: Mask = None) -> None:
    """The output, what is written behind what is held, and that nothing else is."""
    truth = [np.array(x) for x in block.reference(c.x, c.weights, c.constants, c.keys, c.values, c.offset, mask)]
    out, *rooms = called(c, mask)
    used, t = c.keys.shape[2], c.x.shape[1]
    assert np.abs(truth[0]).max() > 1
    np.testing.assert_allclose(out, truth[0], rtol=0, atol=ATOL)
    for room, held, right in zip(rooms, (c.keys, c.values), truth[1:], strict=True):
        assert np.array_equal(room[:, :, :used], np.array(held))
        np.testing.assert_allclose(room[:, :, used : used + t], right[:, :, used:], rtol=0, atol=ATOL)
        assert (room[:, :, used + t :] == HELD).all()


def masks(rows: int, heads: int, t: int, length: int) -> dict[str, Mask]:
    """One of each kind and shape; each query sees a key."""
    seen = np.random.default_rng(1).random((rows, heads, t, length)) < 0.5
    seen[..., 0] = True
    added = np.where(seen, np.random.default_rng(2).normal(0, 1, seen.shape), -np.inf).astype(np.float32)
    found: dict[str, NDArray[np.bool_] | NDArray[np.float32]] = {
        "bool of all": seen,
        "bool of rows": seen[:, :1],
        "bool of rows and keys": seen[:, :1, :1],
        "bool of queries and keys": seen[0, 0],
        "bool of keys": seen[0, 0, 0],
        "added to all": added,
        "added to queries": added[:, :, :, :1] * 0 + 1,
        "added to queries and keys": added[0, 0],
        "added to heads": added[:1],
    }
    return {"none": None, "causal": "causal"} | {name: mx.array(mask) for name, mask in found.items()}  # pyright: ignore[reportArgumentType]


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


@pytest.mark.parametrize(("rows", "t"), [(1, 193), (3, 150), (40, 17)])
def test_more_positions_than_are_projected_at_once(rows: int, t: int):
    shape = Shape(rows=rows, t=t, used=4, biased=True, normed=True)
    check(case(shape, mx.arange(rows) * 3), "causal")


@pytest.mark.parametrize("name", [field.name for field in fields(Weights) if field.name != "frequencies"])
def test_each_array_enters(name: str):
    """What a kernel ignores would else go unseen where it is small."""
    c = case(Shape(biased=True, normed=True, used=3))
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


def test_a_row_does_not_depend_on_what_its_mates_hold():
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


@pytest.mark.parametrize("what", ["x", "mask"])
def test_what_is_traced_is_refused_before_anything_is_written(what: str):
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
def test_what_all_rows_begin_with_is_as_good_as_copies(front: int, t: int, used: int, kind: str, width: int):
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


@pytest.mark.parametrize("real", [[17, 1, 0], [1, 1, 1], [2, 17, 16]])
def test_what_all_rows_begin_with_stands_before_rows_of_unlike_length(real: list[int]):
    c, front = case(Shape(rows=3, t=17, used=40, heads=9, kv=3)), 40
    for array in (c.keys, c.values):
        array[1:] = array[:1]
    held = [np.array(array[0]) for array in (c.keys, c.values)]

    def found(x: mx.array, lengths: list[int], at: Fronts | None) -> NDArray[np.float32]:
        used = 0 if at else front
        own = [np.zeros((len(lengths), 3, used + 17, 16), np.float32) for _ in range(2)]
        for behind, ahead in zip(own, held, strict=True):
            behind[:, :, :used] = ahead[:, :used]
        rooms = replace(rooms_of(own[0], own[1], used), fronts=at)
        return np.array(Block(c.weights, c.constants)(x, rooms, np.array([front], np.int64), "causal", np.array(lengths)))

    ours = found(c.x, real, fronts_of(held, 3, front))
    np.testing.assert_array_equal(ours, found(c.x, real, None))
    for row, n in enumerate(real):
        assert not ours[row, n:].any()
