"""A pooling model as it is called: a body that makes hidden states, and a head that makes one vector of a row's."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from .modes import pool
from .spec import EmbeddingHead, Normalize, PoolingSpec

Body = Callable[[mx.array, list[int], mx.array | None], mx.array]


class PoolingNetwork(nn.Module):
    """Maps rows of token ids to vectors."""

    def __init__(self, body: Any, spec: PoolingSpec):
        super().__init__()
        self.body, self.spec = body, spec

    def __call__(
        self, tokens: mx.array, lengths: Sequence[int], starts: Sequence[int] | None = None, types: mx.array | None = None
    ) -> mx.array:
        """Returns vectors [B, D] float32 of tokens [B, T], which have pads on the right.

        lengths [B]: tokens of each row. starts [B]: the first token that pooling counts, None for 0. types [B, T]: token types.
        """
        states = self.body(tokens, list(lengths), types).astype(mx.float32)
        counts, first = mx.array(list(lengths)), mx.array(list(starts) if starts is not None else [0] * len(lengths))
        head = self.spec.head
        assert isinstance(head, EmbeddingHead)
        vectors = mx.concatenate([pool(states, counts, first, mode) for mode in head.modes], axis=-1)
        for layer in head.layers:
            assert isinstance(layer, Normalize)
            vectors = _normalized(vectors)
        if head.cut is not None:
            vectors = vectors[:, : head.cut]
        return _normalized(vectors) if head.normalize else vectors


def _normalized(vectors: mx.array) -> mx.array:
    return vectors / mx.maximum(mx.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
