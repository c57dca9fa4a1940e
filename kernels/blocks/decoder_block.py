"""A decoder block on the CPU in one call: attention over a cache, then a gated feed-forward, with norms before them (Llama, Touvron et al.
2023), behind them (OLMo 2), or both (Gemma 2).

Part by part, mlx would wake up some ten times per block. In a decode step that takes as long as the arithmetic. Knows the arrays of a block
and of its cache, not where they come from.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import attention, elementwise, linear, native, rope
from ..attention import Mask
from ..quantized import Matrix, QuantizedPlace, QuantizedWeight

Angles = tuple[NDArray[np.float32], NDArray[np.float32]]  # cosines and sines [B, T, R / 2] of each token, dense


@dataclass(frozen=True, slots=True)
class Weights:
    """A block's weights, float32 or quantized: projections [N, K]. All others are vectors, None where there is none.

    ``norm`` and ``second_norm`` come before attention and feed-forward, ``post_norm`` and ``second_post_norm`` behind them. ``q_norm`` and
    ``k_norm`` are of a head's width, or of all heads' (``Constants.wide_norms``). Without ``gate``, ``up`` and ``down`` the block is its
    first half: the feed-forward is somebody else's.
    """

    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix
    gate: Matrix | None = None
    up: Matrix | None = None
    down: Matrix | None = None
    q_bias: mx.array | None = None
    k_bias: mx.array | None = None
    v_bias: mx.array | None = None
    o_bias: mx.array | None = None
    gate_bias: mx.array | None = None
    up_bias: mx.array | None = None
    down_bias: mx.array | None = None
    norm: mx.array | None = None
    post_norm: mx.array | None = None
    second_norm: mx.array | None = None
    second_post_norm: mx.array | None = None
    q_norm: mx.array | None = None
    k_norm: mx.array | None = None
    frequencies: mx.array = field(kw_only=True)  # [R / 2], radians a position


@dataclass(slots=True)
class Rooms:
    """The memory of a batch's rows for keys and values [K, room, D]: addresses, and sizes in positions. All [B]."""

    keys: NDArray[np.int64]
    values: NDArray[np.int64]
    sizes: NDArray[np.int64]
    used: NDArray[np.int64]  # positions held before a call
    fronts: "Fronts | None" = None  # prefixes before the rows' own positions, not counted in ``used``


@dataclass(frozen=True, slots=True)
class Fronts:
    """The prefixes of rows, which several rows may share: addresses of keys and values [K, room, D], and positions. All [B]."""

    keys: NDArray[np.int64]
    values: NDArray[np.int64]
    rooms: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """A block's constants. The epsilons are those of the norms in ``Weights``.

    norm_more: is added to the weights of norms. residual: by which the results of attention and feed-forward are multiplied before they are
    added. cap: see ``attention.reference``. activation: the feed-forward's, by its name in ``elementwise.ACTIVATIONS``. neighbours: pairs
    that are rotated are (2i, 2i + 1), not (i, i + R / 2).
    """

    width: int  # of a head
    scale: float  # of scores
    eps: float = 0.0
    post_eps: float = 0.0
    second_eps: float = 0.0
    second_post_eps: float = 0.0
    q_eps: float = 0.0
    k_eps: float = 0.0
    norm_more: float = 0.0
    residual: float = 1.0
    cap: float = 0.0
    position_scale: float = 1.0
    magnitude: float = 1.0  # see ``rope.reference``
    neighbours: bool = False
    wide_norms: bool = False
    activation: str = "silu"


def reference(
    x: mx.array,
    w: Weights,
    c: Constants,
    keys: mx.array,
    values: mx.array,
    offset: int | mx.array,
    mask: Mask = None,
    angles: Angles | None = None,
) -> tuple[mx.array, mx.array, mx.array]:
    """Computes a block in mlx's ops, the specification. x [B, T, d] from position ``offset`` on; cached keys and values [B, K, L, D].

    Returns the block's output [B, T, d], and keys and values [B, K, L + T, D]. ``mask``: see ``attention.reference``. ``angles``: by which
    queries and keys turn, in place of those from ``offset`` on.
    """
    b, t, _ = x.shape

    def normed(y: mx.array, norm: mx.array | None, eps: float) -> mx.array:
        return y if norm is None else elementwise.reference_rms_norm(y, norm, eps, c.norm_more)

    def heads(y: mx.array, norm: mx.array | None = None, eps: float = 0.0) -> mx.array:
        y = normed(y, norm, eps) if c.wide_norms else y
        y = y.reshape(b, t, -1, c.width).transpose(0, 2, 1, 3)
        return y if c.wide_norms else normed(y, norm, eps)

    def turned(y: mx.array) -> mx.array:
        if angles is not None:
            return rope.turned(y, mx.array(angles[0])[:, None], mx.array(angles[1])[:, None], c.neighbours)
        return rope.reference(y, w.frequencies, offset, c.position_scale, c.neighbours, c.magnitude)

    first = normed(x, w.norm, c.eps)
    q, k, v = (linear.reference(first, *pair) for pair in ((w.q, w.q_bias), (w.k, w.k_bias), (w.v, w.v_bias)))
    keys = mx.concatenate([keys, turned(heads(k, w.k_norm, c.k_eps))], axis=2)
    values = mx.concatenate([values, heads(v)], axis=2)
    seen = attention.reference(turned(heads(q, w.q_norm, c.q_eps)), keys, values, c.scale, mask, None, c.cap)
    attended = linear.reference(seen.transpose(0, 2, 1, 3).reshape(b, t, -1), w.o, w.o_bias)
    x = x + c.residual * normed(attended, w.post_norm, c.post_eps)
    if w.gate is None or w.up is None or w.down is None:
        return x, keys, values
    second = normed(x, w.second_norm, c.second_eps)
    gate, up = linear.reference(second, w.gate, w.gate_bias), linear.reference(second, w.up, w.up_bias)
    gated = elementwise.ACTIVATIONS[c.activation](gate) * up
    return x + c.residual * normed(linear.reference(gated, w.down, w.down_bias), w.second_post_norm, c.second_post_eps), keys, values


class Block:
    """A block's weights, ready for the library, and the call itself."""

    d: int  # numbers of a position
    heads: int
    kv: int
    width: int  # of a head
    call: "BlockCall"  # with what all calls of the block share

    def __init__(self, weights: Weights, constants: Constants, packed: Mapping[str, NDArray[np.float32] | None] | None = None):
        """packed: projections that are held packed too (``linear.packed``, of weight and bias). Raises Traced.

        ``q`` packed with ``k`` and ``v`` behind it is named "qkv", and ``gate`` with ``up`` "gate_up". These weights must then be views of
        one array, and so must their biases.
        """
        arrays = {field.name: getattr(weights, field.name) for field in fields(Weights)}
        self._views = {name: native.view(native.dense(array)) for name, array in arrays.items() if isinstance(array, mx.array)}
        self.call = BlockCall(**{name: view.ctypes.data for name, view in self._views.items()})
        quantized = {name: array.dense() for name, array in arrays.items() if isinstance(array, QuantizedWeight)}
        none, count = QuantizedPlace(), len(_PROJECTIONS)
        self._quantized = (
            quantized,
            (QuantizedPlace * count)(*(QuantizedPlace.of(quantized[name]) if name in quantized else none for name in _PROJECTIONS)),
        )
        self.call.quantized = ctypes.addressof(self._quantized[1])
        packed = packed or {}
        held = [packed.get(name) for name in _PROJECTIONS]
        for name, (first, *others) in _JOINED.items():
            if packed.get(name) is not None:
                held[_PROJECTIONS.index(first)] = packed[name]
                self._require_joined([first, *others])
        self._packed = held, (ctypes.c_void_p * count)(*(None if each is None else each.ctypes.data for each in held))
        self.call.packed = ctypes.addressof(self._packed[1])
        call, c = self.call, constants
        self.d, self.width, self.heads, self.kv = weights.q.shape[1], c.width, weights.q.shape[0] // c.width, weights.k.shape[0] // c.width
        call.d, call.width, call.heads, call.kv = self.d, self.width, self.heads, self.kv
        call.hidden, call.half = 0 if weights.gate is None else weights.gate.shape[0], weights.frequencies.size
        call.joined_qkv, call.joined_mlp = (packed.get(name) is not None for name in _JOINED)
        for name in (*_FLOATS, "neighbours", "wide_norms"):
            setattr(call, name, getattr(c, name))
        call.activation = [*elementwise.ACTIVATIONS].index(c.activation)

    def _require_joined(self, names: Sequence[str]) -> None:
        """Raises ValueError unless the named weights lie one behind the other, and their biases too."""
        for suffix in ("", "_bias"):
            views = [self._views.get(name + suffix) for name in names]
            ends = [None if view is None else view.ctypes.data + view.nbytes for view in views]
            begins = [None if view is None else view.ctypes.data for view in views]
            if ends[:-1] != begins[1:]:
                raise ValueError(f"{', '.join(name + suffix for name in names)} are packed as one, and do not lie one behind the other")

    def __call__(
        self,
        x: mx.array,
        rooms: Rooms,
        starts: NDArray[np.int64],
        mask: Mask = None,
        real: NDArray[np.int64] | None = None,
        angles: Angles | None = None,
    ) -> mx.array:
        """Computes ``reference``'s output now, and writes the T positions' keys and values after those that ``rooms`` hold.

        ``real`` [B]: how many of a row's T columns are computed, None for all; the output of the others is 0. ``starts`` [1] or [B]: the
        position of each row's first column, by which queries and keys turn where there are no ``angles``. A mask that is an array has
        four axes, and then all rows hold equally many positions; else it is "causal" or None. Raises Traced before anything is written.
        """
        kind, seen = attention.kind_of(mask)
        x = native.dense(x)
        out = native.empty(x.shape)
        call, made = BlockCall.from_buffer_copy(self.call), native.view(out)  # a call's own: threads compute with one block at once
        call.kind, call.mask = kind, None
        if seen is not None:
            native.evaluate_arrays(seen)
            over = native.view(seen)
            call.mask = over.ctypes.data
            call.ms[:] = [stride // over.itemsize if n > 1 else 0 for stride, n in zip(over.strides, over.shape, strict=True)]
        call.x, call.out, call.starts, call.count = native.view(x).ctypes.data, made.ctypes.data, starts.ctypes.data, len(starts)
        place_call(call, rooms)
        call.real = None if real is None else real.ctypes.data
        call.cosines, call.sines = (None, None) if angles is None else (each.ctypes.data for each in angles)
        call.b, call.t = x.shape[:2]
        before = rooms.used if rooms.fronts is None else rooms.used + rooms.fronts.lengths
        call.longest = int(before.max()) + call.t
        native.library().block(ctypes.byref(call))
        return out


def place_call(call: "BlockCall", rooms: Rooms) -> None:
    """Notes where the caches of a call lie."""
    call.keys, call.values = rooms.keys.ctypes.data, rooms.values.ctypes.data
    call.rooms, call.used = rooms.sizes.ctypes.data, rooms.used.ctypes.data
    if rooms.fronts is not None:
        at = rooms.fronts
        call.front_keys, call.front_values = at.keys.ctypes.data, at.values.ctypes.data
        call.fronts, call.front_rooms = at.lengths.ctypes.data, at.rooms.ctypes.data


_WEIGHTS = tuple(one.name for one in fields(Weights))
_PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
_EPSILONS = ("eps", "post_eps", "second_eps", "second_post_eps", "q_eps", "k_eps")
_FLOATS = (*_EPSILONS, "norm_more", "residual", "scale", "cap", "position_scale", "magnitude")
_JOINED = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}


class BlockCall(ctypes.Structure):
    """A call of a block: decoder_block.h's ``Block``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", *_WEIGHTS, "starts", "cosines", "sines", "mask", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("front_keys", "front_values", "quantized", "packed", "out")),
        *((name, ctypes.c_void_p) for name in ("rooms", "used", "real", "fronts", "front_rooms", "lengths")),
        *((name, ctypes.c_int64) for name in ("b", "t", "d", "heads", "kv", "width", "hidden", "half", "count", "longest")),
        ("ms", ctypes.c_int64 * 4),
        *((name, ctypes.c_float) for name in _FLOATS),
        *((name, ctypes.c_int32) for name in ("kind", "neighbours", "wide_norms", "joined_qkv", "joined_mlp", "activation")),
    )
