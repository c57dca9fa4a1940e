"""Makes an embedding of a row's hidden states: pooling, the folder's dense layers, the cut, the length."""

import mlx.core as mx
from mlx import nn

from .dense_layer import Dense
from .modes import pool
from .spec import EmbeddingHead, Normalize

SMALLEST = 1e-12  # torch's F.normalize divides by no less


class EmbeddingLayers(nn.Module):
    """An ``EmbeddingHead`` with its weights."""

    def __init__(self, head: EmbeddingHead):
        super().__init__()
        self.spec = head
        self.layers = [Dense(layer) if not isinstance(layer, Normalize) else Unit() for layer in head.layers]

    def __call__(self, states: mx.array, tokens: mx.array, lengths: mx.array, starts: mx.array) -> mx.array:
        """Returns vectors [B, D] of states [B, T, H] float32. lengths, starts [B]: as in ``pool``. tokens [B, T] are not read."""
        vectors = mx.concatenate([pool(states, lengths, starts, mode) for mode in self.spec.modes], axis=-1)
        for layer in self.layers:
            vectors = layer(vectors)
        vectors = vectors[:, : self.spec.cut]
        return unit(vectors) if self.spec.normalize else vectors


class Unit(nn.Module):
    """sentence-transformers' ``Normalize``."""

    def __call__(self, vectors: mx.array) -> mx.array:
        """Returns vectors [B, D] of length 1."""
        return unit(vectors)


def unit(vectors: mx.array) -> mx.array:
    """Returns vectors [B, D] divided by their Euclidean lengths."""
    return vectors / mx.maximum(mx.linalg.norm(vectors, axis=-1, keepdims=True), SMALLEST)
