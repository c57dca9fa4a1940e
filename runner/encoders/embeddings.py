"""The first layer of an encoder: the sum of a token's embedding, its position's and its type's, normalised."""

import mlx.core as mx
from mlx import nn

from ..core.errors import ModelError


class TokenEmbeddings(nn.Module):
    """Embeddings of tokens, and of positions and types where a model has tables for them.

    positions: rows of the table of positions; types: rows of the table of types. pad: the id behind which RoBERTa's positions begin,
    and tokens of this id do not count: ``pad + 1`` is the position of a row's first other token. None: positions are columns.
    """

    def __init__(
        self, vocabulary: int, width: int, eps: float, *, positions: int = 0, types: int = 0, pad: int | None = None, norm_bias: bool = True
    ):
        super().__init__()
        self.pad = pad
        self.words = nn.Embedding(vocabulary, width)
        if positions:
            self.positions = nn.Embedding(positions, width)
        if types:
            self.types = nn.Embedding(types, width)
        self.norm = nn.LayerNorm(width, eps=eps, bias=norm_bias)

    def __call__(self, tokens: mx.array, types: mx.array | None = None) -> mx.array:
        """tokens, types [B, T] -> [B, T, H]. Types are all 0 where they are None or the model has one type alone."""
        x = self.words(tokens)
        if "types" in self:
            x = x + self.types(mx.zeros((1, 1), mx.int32) if types is None or len(self.types.weight) == 1 else types)
        if "positions" in self:
            x = x + self.positions(self._places(tokens))
        return self.norm(x)

    def _places(self, tokens: mx.array) -> mx.array:
        """Returns the rows of the table of positions: [T], or [B, T] where they depend on the tokens."""
        columns, room = tokens.shape[1], len(self.positions.weight) - (0 if self.pad is None else self.pad + 1)
        if columns > room:  # mx would read beyond the table without a word
            raise ModelError(f"a text of {columns} tokens is longer than the model's {room} positions; cut texts to {room} tokens")
        if self.pad is None:
            return mx.arange(columns)
        counted = (tokens != self.pad).astype(mx.int32)
        return mx.cumsum(counted, axis=1) * counted + self.pad
