"""The two shapes of an encoder's block: a LayerNorm behind each residual (BERT and most others), or before each part (ModernBERT)."""

from dataclasses import dataclass

import mlx.core as mx
from mlx import nn

from .attention import AttentionMask, RotaryPositions, attend, by_mlx
from .settings import activation


@dataclass(slots=True, frozen=True)
class BlockShape:
    """Sizes and options of a block. activation: as config.json names it. gated: its half of the MLP scales the other half."""

    width: int
    heads: int
    mlp_width: int
    eps: float
    activation: str
    gated: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True


class EncoderBlock(nn.Module):
    """The parts of a block.

    qkv: queries, keys and values in one product, in this order. mlp_input: [mlp_width], and of a gated MLP [2 mlp_width], whose
    first half goes through the activation and scales the second. window: how far away a token sees; None: the whole row.
    """

    def __init__(self, shape: BlockShape, window: int | None = None, rope: RotaryPositions | None = None):
        super().__init__()
        width, inner = shape.width, shape.mlp_width
        self.shape, self.window, self.rope = shape, window, rope
        self.qkv = nn.Linear(width, 3 * width, bias=shape.attention_bias)
        self.attention_output = nn.Linear(width, width, bias=shape.attention_bias)
        self.attention_norm = nn.LayerNorm(width, eps=shape.eps, bias=shape.norm_bias)
        self.mlp_input = nn.Linear(width, inner * (2 if shape.gated else 1), bias=shape.mlp_bias)
        self.activation = activation(shape.activation)
        self.mlp_output = nn.Linear(inner, width, bias=shape.mlp_bias)
        self.mlp_norm = nn.LayerNorm(width, eps=shape.eps, bias=shape.norm_bias)

    def attention(self, x: mx.array, mask: AttentionMask) -> mx.array:
        """x [B, T, H] -> the same shape."""
        return self.attention_output(attend(self.qkv(x), self.shape.heads, mask, self.window, self.rope, self.taken))

    def taken(self, q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None) -> mx.array:
        """Queries, keys and values [B, H, T, D] -> the same shape."""
        return by_mlx(q, k, v, scale, mask)

    def mlp(self, x: mx.array) -> mx.array:
        """x [B, T, H] -> the same shape."""
        x = self.mlp_input(x)
        if self.shape.gated:
            gate, x = mx.split(x, 2, axis=-1)
            return self.mlp_output(self.activation(gate) * x)
        return self.mlp_output(self.activation(x))


class PostNormBlock(EncoderBlock):
    """A LayerNorm behind each residual (Vaswani et al. 2017)."""

    def __call__(self, x: mx.array, mask: AttentionMask) -> mx.array:
        """x [B, T, H] -> the same shape."""
        x = self.attention_norm(x + self.attention(x, mask))
        return self.mlp_norm(x + self.mlp(x))


class PreNormBlock(EncoderBlock):
    """A LayerNorm before attention and MLP, none behind them (Xiong et al. 2020)."""

    def __call__(self, x: mx.array, mask: AttentionMask) -> mx.array:
        """x [B, T, H] -> the same shape."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))
