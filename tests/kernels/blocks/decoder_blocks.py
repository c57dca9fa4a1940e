"""Makes decoder blocks for tests of the kernel: random weights, inputs, caches and masks."""

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.kernels import linear, rope
from mlx_bulk.kernels.attention import Mask
from mlx_bulk.kernels.blocks.decoder_block import Angles, Block, Constants, Rooms, Weights
from numpy.typing import NDArray

from ...rounded_numbers import rounded

HELD = 123.0  # in the rooms behind what is used
EPSILONS = ("eps", "post_eps", "second_eps", "second_post_eps", "q_eps", "k_eps")  # each another, so that none stands for one
BEFORE, BEHIND = ("norm", "second_norm"), ("post_norm", "second_post_norm")
AROUND: dict[str, tuple[str, ...]] = {"before": BEFORE, "behind": BEHIND, "both": BEFORE + BEHIND, "none": ()}


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a block, and of a call of it."""

    d: int = 48
    heads: int = 4
    kv: int = 2
    width: int = 16
    half: int = 8  # pairs that are rotated
    hidden: int = 70  # 0: there is no feed-forward
    biased: bool = False
    normed: bool = False
    around: tuple[str, ...] = ("norm", "second_norm")  # its norms of all numbers of a position
    wide_norms: bool = False
    norm_more: float = 0.0
    residual: float = 1.0
    cap: float = 0.0
    magnitude: float = 1.0
    activation: str = "silu"
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
    arrays = {name: random(n, k := depths.get(name, s.d), by=max(k, 1) ** -0.5) for name, n in outputs.items()}
    arrays |= {f"{name}_bias": random(n) for name, n in outputs.items() if s.biased}
    of_heads = {"q_norm": inner, "k_norm": inner_kv} if s.wide_norms else dict.fromkeys(("q_norm", "k_norm"), s.width)
    arrays |= {name: random(s.d, by=0.3, around=1.0 - s.norm_more) for name in s.around}
    arrays |= {name: random(n, by=0.3, around=1.0 - s.norm_more) for name, n in of_heads.items() if s.normed}
    same = ("norm_more", "residual", "cap", "magnitude", "activation", "wide_norms", "neighbours")
    constants = Constants(
        width=s.width,
        scale=s.width**-0.5,
        position_scale=0.5,
        **dict(zip(EPSILONS, (1e-5, 3e-2, 2e-2, 5e-2, 1e-3, 1e-1), strict=True)),
        **{name: getattr(s, name) for name in same},
    )
    cached = [random(s.rows, s.kv, s.used, s.width) for _ in range(2)]
    x = random(s.rows, s.t, s.d)
    if not s.hidden:
        arrays = {name: array for name, array in arrays.items() if name.split("_")[0] not in ("gate", "up", "down")}
    weights = Weights(**arrays, frequencies=rope.frequencies(2 * s.half, 100.0))
    return Case(weights, constants, x, cached[0], cached[1], s.used if offset is None else offset)


def called(
    c: Case, mask: Mask = None, spare: int = 3, angles: Angles | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Its output, and the rooms for keys and values as it leaves them."""
    (rows, kv, used, width), t = c.keys.shape, c.x.shape[1]
    arrays = [np.full((rows, kv, used + t + spare, width), HELD, np.float32) for _ in range(2)]
    for array, held in zip(arrays, (c.keys, c.values), strict=True):
        array[:, :, :used] = np.array(held)
    starts = np.array(c.offset, np.int64).reshape(-1)
    out = Block(c.weights, c.constants)(c.x, rooms_of(arrays[0], arrays[1], used), starts, mask, None, angles)
    return np.array(out), arrays[0], arrays[1]


def rooms_of(keys: NDArray[np.float32], values: NDArray[np.float32], used: int) -> Rooms:
    """Rows [K, S, D] of arrays [B, K, S, D], all of which hold as much."""
    rows = np.arange(len(keys)) * keys[0].nbytes
    return Rooms(keys.ctypes.data + rows, values.ctypes.data + rows, np.full(len(keys), keys.shape[2]), np.full(len(keys), used))


def rounded_case(s: Shape) -> Case:
    """A case with projections that bfloat16 holds, so that tiles take them packed."""
    c = case(s)
    return replace(c, weights=replace(c.weights, **{name: rounded(getattr(c.weights, name)) for name in _projections(c)}))


def packed_apart(c: Case) -> dict[str, Any]:
    """Each projection of a rounded case packed, as ``Block`` takes them."""
    found = {name: linear.packed(getattr(c.weights, name), getattr(c.weights, f"{name}_bias")) for name in _projections(c)}
    assert all(packing is not None for packing in found.values())
    return found


def _projections(c: Case) -> list[str]:
    return [name for name in ("q", "k", "v", "o", "gate", "up", "down") if getattr(c.weights, name) is not None]


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
