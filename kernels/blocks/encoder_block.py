"""An encoder's block on the CPU in one call: attention both ways and an MLP, norms behind the residuals or before the parts.

Rows are padded on the right, and pads are not computed. The weights are packed once into the order in which they are read, a copy beside
mlx's own. What lies between products is computed while it is in the cache. Knows the arrays of a block, not where they come from.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import attention, elementwise, linear, native, rope


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """A block's weights, float32: products [N, K], all others vectors.

    qkv [3 d, d]; mlp_input [hidden, d]; gate [hidden, d] goes through the activation and scales mlp_input's; None: no gate.
    """

    qkv: mx.array
    output: mx.array
    mlp_input: mx.array
    mlp_output: mx.array
    gate: mx.array | None = None
    qkv_bias: mx.array | None = None
    output_bias: mx.array | None = None
    mlp_input_bias: mx.array | None = None
    mlp_output_bias: mx.array | None = None
    gate_bias: mx.array | None = None
    norm: mx.array | None = None
    norm_bias: mx.array | None = None
    second_norm: mx.array | None = None
    second_norm_bias: mx.array | None = None
    frequencies: mx.array | None = None  # [D / 2], radians a position


@dataclass(frozen=True, slots=True)
class EncoderConstants:
    """A block's constants.

    first_norms: norms stand before the parts. normed: there is a norm before attention (always, where they stand behind). window: how far
    away a token sees; None: the whole row.
    """

    heads: int
    eps: float
    second_eps: float
    first_norms: bool = False
    normed: bool = True
    window: int | None = None
    activation: str = "gelu"


def reference(x: mx.array, lengths: Sequence[int], w: EncoderWeights, c: EncoderConstants, score_bias: mx.array | None = None) -> mx.array:
    """Computes a block in mlx's ops, the specification. x [B, T, d], of whose rows the first ``lengths`` are tokens -> [B, T, d].

    score_bias [1, H, T, T] is added to the scaled scores. What becomes of pads is left open.
    """
    b, t, d = x.shape
    at = mx.arange(t)
    away = mx.abs(at[:, None] - at[None])
    seen = (at[None] < mx.array(list(lengths))[:, None])[:, None, None] & (away <= (t if c.window is None else c.window)) | (away == 0)

    def normed(y: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
        return elementwise.reference_layer_norm(y, weight, bias, eps)

    def attended(y: mx.array) -> mx.array:
        q, k, v = linear.reference(y, w.qkv, w.qkv_bias).reshape(b, t, 3, c.heads, -1).transpose(2, 0, 3, 1, 4)
        if w.frequencies is not None:
            q, k = (rope.reference(part, w.frequencies, 0) for part in (q, k))
        mask = seen if score_bias is None else mx.where(seen, score_bias, -mx.inf)
        taken = attention.reference(q, k, v, (d // c.heads) ** -0.5, mask).transpose(0, 2, 1, 3)
        return linear.reference(taken.reshape(b, t, d), w.output, w.output_bias)

    def fed(y: mx.array) -> mx.array:
        up = linear.reference(y, w.mlp_input, w.mlp_input_bias)
        of = elementwise.ACTIVATIONS[c.activation]
        up = of(up) if w.gate is None else of(linear.reference(y, w.gate, w.gate_bias)) * up
        return linear.reference(up, w.mlp_output, w.mlp_output_bias)

    if c.first_norms:
        x = x + attended(normed(x, w.norm, w.norm_bias, c.eps) if c.normed else x)
        return x + fed(normed(x, w.second_norm, w.second_norm_bias, c.second_eps))
    x = normed(x + attended(x), w.norm, w.norm_bias, c.eps)
    return normed(x + fed(x), w.second_norm, w.second_norm_bias, c.second_eps)


def suits(x: mx.array, lengths: Sequence[int], heads: int, score_bias: mx.array | None = None) -> bool:
    """Returns True when the library serves a call: float32 on the CPU, and shapes that fit."""
    if x.ndim != 3 or len(lengths) != x.shape[0] or not all(0 <= n <= x.shape[1] for n in lengths) or not native.suits(x):
        return False
    return score_bias is None or (score_bias.shape == (1, heads, x.shape[1], x.shape[1]) and native.suits(score_bias))


class PackedBlock:
    """A block's packed weights, and the call itself."""

    d: int

    def __init__(self, w: EncoderWeights, c: EncoderConstants):
        """Packs the weights. Raises Traced."""
        self.d, hidden = w.qkv.shape[1], w.mlp_input.shape[0]
        pairs = {
            "qkv": (w.qkv, w.qkv_bias),
            "output": (w.output, w.output_bias),
            "mlp_input": (w.mlp_input, w.mlp_input_bias),
            "gate": (w.gate, w.gate_bias),
            "mlp_output": (w.mlp_output, w.mlp_output_bias),
        }
        vectors = {name: getattr(w, name) for name in ("norm", "norm_bias", "second_norm", "second_norm_bias", "frequencies")}
        self._held = {name: linear.packed_in_vectors(weight, bias) for name, (weight, bias) in pairs.items() if weight is not None}
        self._held |= {name: native.view(native.dense(array)) for name, array in vectors.items() if array is not None}
        self._call = _Call(**{name: array.ctypes.data for name, array in self._held.items()})
        call = self._call
        call.d, call.heads, call.hidden = self.d, c.heads, hidden
        call.half = 0 if w.frequencies is None else w.frequencies.size
        call.window = -1 if c.window is None else c.window
        call.eps, call.second_eps, call.scale = c.eps, c.second_eps, (self.d // c.heads) ** -0.5
        call.first_norms, call.normed, call.activation = c.first_norms, c.normed, [*elementwise.ACTIVATIONS].index(c.activation)

    def __call__(self, x: mx.array, lengths: NDArray[np.int64], score_bias: mx.array | None = None) -> mx.array:
        """Computes ``reference`` now; the states of pads are 0. Raises Traced.

        A row's bits depend on its tokens alone, not on other rows, its place, or the number of its pads.
        """
        x, score_bias = native.dense(x), None if score_bias is None else native.dense(score_bias)
        out = native.empty(x.shape)
        call = _Call.from_buffer_copy(self._call)  # a call's own: threads compute with one block at once
        call.x, call.out, call.lengths = native.view(x).ctypes.data, native.view(out).ctypes.data, lengths.ctypes.data
        call.score_bias = None if score_bias is None else native.view(score_bias).ctypes.data
        call.b, call.t = x.shape[:2]
        native.library().encoder_block(ctypes.byref(call))
        return out


class _Call(ctypes.Structure):  # encoder_block.h's EncoderBlock
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "out", "lengths", "score_bias", "qkv", "output", "mlp_input", "gate", "mlp_output")),
        *((name, ctypes.c_void_p) for name in ("norm", "norm_bias", "second_norm", "second_norm_bias", "frequencies")),
        *((name, ctypes.c_int64) for name in ("b", "t", "d", "heads", "hidden", "half", "window")),
        *((name, ctypes.c_float) for name in ("eps", "second_eps", "scale")),
        *((name, ctypes.c_int32) for name in ("first_norms", "normed", "activation")),
    )
