"""Keys or values of one layer's batch in few bits, as a cache hands them to attention.

Each row has its tokens side by side behind its pads. Its first tokens, the *early* ones, may also be kept as the model made them:

    parts    . . a b c d     early   a b        here two of each row; where a token is early, its bits in ``parts`` do not count
             e f g h i j             e f        columns are cache positions, dots are pads
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..core.kv_quantization import KVQuantization

Parts = Sequence[mx.array]  # codes [B, K, L, D x bits / 32] uint32; scales and biases [B, K, L, D / group] of the model's type


def pack(x: mx.array, kv: KVQuantization) -> list[mx.array]:
    """Quantizes x [B, K, L, D]. D is a multiple of the group."""
    return list(mx.quantize(x, group_size=kv.group, bits=kv.bits))


@dataclass(slots=True, frozen=True)
class PackedKV:
    """Keys or values [B, K, L, D] in few bits.

    early: [B, K, start, D], the first tokens of each row; None where ``kv.start`` is 0. pads [B]: columns before each row's first token.
    Model files that read ``shape`` and ``dtype`` of what a cache returns find those of the unquantized array.
    """

    parts: Parts
    early: mx.array | None
    pads: mx.array
    kv: KVQuantization

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns (B, K, L, D)."""
        *outer, groups = self.parts[1].shape
        return (*outer, groups * self.kv.group)

    @property
    def dtype(self) -> mx.Dtype:
        """Returns the type of the unquantized numbers."""
        return self.parts[1].dtype

    def is_early(self) -> tuple[mx.array, mx.array]:
        """Returns which columns hold early tokens, bool [B, 1, 1, L], and which of them (within bounds elsewhere), int32 of this shape."""
        token = (mx.arange(self.shape[2]) - self.pads[:, None])[:, None, None]
        return (token >= 0) & (token < self.kv.start), mx.clip(token, 0, self.kv.start - 1)

    def whole(self) -> mx.array:
        """Returns what the bits stand for [B, K, L, D], with the early tokens as the model made them."""
        codes, scales, biases = self.parts
        found = mx.dequantize(codes, scales, biases, group_size=self.kv.group, bits=self.kv.bits)
        if self.early is None:
            return found
        early, at = (x.swapaxes(-1, -2) for x in self.is_early())  # [B, 1, L, 1]
        return mx.where(early, mx.take_along_axis(self.early, at, axis=2), found)
