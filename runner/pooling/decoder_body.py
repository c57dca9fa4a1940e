"""mlx-lm's networks as bodies of pooling models: token ids in, hidden states out, without caches."""

from typing import Any

import mlx.core as mx
from mlx import nn

from ..layers.lm_head import Head
from ..layers.network import Network


class DecoderBody(nn.Module):
    """A causal language model without its head."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def __call__(self, tokens: mx.array, lengths: list[int], types: mx.array | None = None) -> mx.array:
        """tokens [B, T] with pads on the right, lengths [B] -> hidden states [B, T, H]. A token never sees those behind it."""
        return Network(self.network, Head(self.network))(tokens, None, lengths=lengths, read="states")
