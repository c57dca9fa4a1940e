"""A weight that stays in few bits, as mlx-lm's quantized checkpoints hold it. The products of ``linear`` and whole blocks take it as it is.

The library makes numbers of float32 out of it, scale * q + bias, in the first cache, and multiplies and adds in float32. Only for calls of
up to 4 rows are sums added in another order than with the same numbers held as float32.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn

from . import native

BITS = (2, 3, 4, 5, 6, 8)
LEAST_GROUP = 32  # the library unpacks so many numbers at once


@dataclass(slots=True, frozen=True)
class QuantizedWeight:
    """A weight [N, K] in mlx's mode "affine": words [N, K * bits / 32], scales and biases [N, K / group]. Experts have an axis before."""

    words: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group: int

    @classmethod
    def of(cls, layer: nn.Module) -> "QuantizedWeight | None":
        """Returns the weight of mlx's quantized layer; None where that is in another mode."""
        held: Any = layer
        biases = held.get("biases")
        return None if biases is None or held.mode != "affine" else cls(held["weight"], held["scales"], biases, held.bits, held.group_size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns [N, K], as of the weight before it was quantized."""
        return *self.words.shape[:-1], self.words.shape[-1] * 32 // self.bits

    @property
    def ndim(self) -> int:
        """Returns the number of axes."""
        return self.words.ndim

    @property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        """Returns words, scales and biases."""
        return self.words, self.scales, self.biases

    def __getitem__(self, rows: Any) -> "QuantizedWeight":
        """Returns some rows, as an array's index names them."""
        return QuantizedWeight(self.words[rows], self.scales[rows], self.biases[rows], self.bits, self.group)

    def dense(self) -> "QuantizedWeight":
        """Returns the weight evaluated and contiguous in memory. Raises Traced."""
        words, scales, biases = map(native.dense, self.arrays)
        return QuantizedWeight(words, scales, biases, self.bits, self.group)

    def times(self, x: mx.array) -> mx.array:
        """Returns x [..., K] times the transposed weight [..., N], by mlx: the specification."""
        return mx.quantized_matmul(x, *self.arrays, transpose=True, group_size=self.group, bits=self.bits)


Matrix = mx.array | QuantizedWeight


def suits(weight: QuantizedWeight) -> bool:
    """Returns True when the library serves a weight: its scales are float32, and its shapes fit."""
    if weight.bits not in BITS or weight.group % LEAST_GROUP or weight.words.dtype != mx.uint32:
        return False
    *lead, depth = weight.shape
    fits = depth % weight.group == 0 and weight.scales.shape == weight.biases.shape == (*lead, depth // weight.group)
    return fits and native.suits(weight.scales, weight.biases)


class QuantizedPlace(ctypes.Structure):
    """Where a dense weight lies: matmul_quantized.h's ``Quantized``. Keep the weight while the library computes."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("words", "scales", "biases")),
        *((name, ctypes.c_int64) for name in ("depth", "bits", "group")),
    )

    @classmethod
    def of(cls, weight: QuantizedWeight) -> "QuantizedPlace":
        """Returns the place of a weight that is dense."""
        return cls(*(native.view(array).ctypes.data for array in weight.arrays), weight.shape[-1], weight.bits, weight.group)
