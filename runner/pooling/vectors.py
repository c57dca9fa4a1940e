"""A pooling model as it is called: a body that makes hidden states, and a head that makes one vector of a row's."""

from collections.abc import Sequence
from typing import Any, Self

import mlx.core as mx
from mlx import nn

from ..core.arrays import Ids
from ..core.errors import RowError
from ..core.images import ImageTable, PromptImage


class PoolingNetwork(nn.Module):
    """Maps rows of token ids to vectors.

    body: called with tokens [B, T], lengths and types [B, T] or None; returns states [B, T, H]. head: called with the states in
    float32, tokens, lengths [B] and starts [B]; returns vectors [B, D].
    """

    def __init__(self, body: Any, head: Any):
        super().__init__()
        self.body, self.head = body, head

    def reading(self, images: ImageTable) -> Self:
        """Returns the model for rows with these pictures; it shares all weights. The body's network must have been loaded to read some."""
        return type(self)(self.body.reading(images), self.head)

    def unread(self, images: Sequence[PromptImage]) -> RowError | None:
        """Returns why a row with these pictures has no vector: as ``Network.unread``."""
        return self.body.unread(images)

    def __call__(
        self, tokens: mx.array | Ids, lengths: Sequence[int], starts: Sequence[int] | None = None, types: mx.array | None = None
    ) -> mx.array:
        """Returns vectors [B, D] float32 of tokens [B, T], which have pads on the right.

        lengths [B]: tokens of each row. starts [B]: the first token that pooling counts, None for 0. types [B, T]: token types.
        """
        states = self.body(tokens, list(lengths), types).astype(mx.float32)
        first = mx.zeros(len(lengths), mx.int32) if starts is None else mx.array(list(starts))
        return self.head(states, mx.array(tokens), mx.array(list(lengths)), first).astype(mx.float32)
