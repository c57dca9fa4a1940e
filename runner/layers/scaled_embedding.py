"""Gemma 3's embeddings in float32: mlx-lm scales them by the root of their size in bfloat16, transformers in their own precision."""

from math import sqrt
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.gemma3_text import Gemma3Model


class ScaledEmbedding(nn.Embedding):
    """``nn.Embedding`` whose vectors are multiplied by ``factor``. As an LM head it is ``nn.Embedding``."""

    factor: float  # set by ``scale_exactly``; not among a module's parameters

    def __call__(self, x: mx.array) -> mx.array:
        """x [...] -> [..., K]."""
        return super().__call__(x) * self.factor


def scale_exactly(network: Any) -> None:
    """Makes up for what the rounded root leaves out, where a network has Gemma 3's body in float32. Else it changes nothing."""
    for body in network.modules():
        if not isinstance(body, Gemma3Model) or type(body.embed_tokens) is not nn.Embedding:
            continue
        if body.embed_tokens.weight.dtype == mx.float32:
            root = sqrt(body.args.hidden_size)
            object.__setattr__(body.embed_tokens, "factor", root / float(mx.array(root, mx.bfloat16).astype(mx.float32)))
            body.embed_tokens.__class__ = ScaledEmbedding
