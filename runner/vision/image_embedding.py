"""Stands where a body keeps its token embedding, and puts the features of a call's pictures over what that returns.

The embedding itself stays the body's child, under its own name: adapters, kernels and fingerprints see no change. Only the attribute by
which the body's code calls it leads here.

    ids        a i i b      i: the placeholder
    returned   A P P B      P: features of a picture
"""

from typing import Any

import mlx.core as mx
from mlx import nn

from ..core.errors import ModelError
from ..layers.lm_head import body_of
from ..patched_layers.call_context import READER, ImageReader, context_of, share_context

NAMES = ("embed_tokens", "wte", "tok_embeddings", "word_embeddings", "embeddings")  # of the token embedding, in mlx-lm's bodies


class ImageEmbedding:
    """The token embedding of ``body``, with the features of the call that ``network`` is in. Not a module: it has no parameters."""

    def __init__(self, network: nn.Module, body: nn.Module, name: str):
        self._network, self._body, self._name = network, body, name

    @property
    def _embedding(self) -> Any:
        return self._body[self._name]  # anew each time: an adapter may have replaced it

    def __call__(self, ids: mx.array) -> mx.array:
        """ids [B, T] -> [B, T, H], an array of the caller's own."""
        embedded: mx.array = self._embedding(ids)
        placed = context_of(self._network).pictures
        if placed is None:
            return embedded
        flat = embedded.reshape(-1, embedded.shape[-1])
        flat[mx.array(placed.indices)] = (placed.embeddings * self._factor).astype(flat.dtype)
        return flat.reshape(embedded.shape)

    @property
    def _factor(self) -> float:
        """By what a mended embedding makes up for its body's rounded scale (Gemma 3); features go through that scale too."""
        return getattr(self._embedding, "factor", 1.0)

    def __getattr__(self, name: str) -> Any:
        """A tied head reads the embedding's weights, or calls it ``as_linear``."""
        if name.startswith("_"):  # a copy asks before it has a body
            raise AttributeError(name)
        return getattr(self._embedding, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Whoever sets weights sets the embedding's."""
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._embedding, name, value)

    def __getitem__(self, name: str) -> Any:
        return self._embedding[name]


def read_pictures_with(network: nn.Module, reader: ImageReader) -> None:
    """Lets ``network`` read pictures, of which ``reader`` makes features. Raises ModelError where its body has no token embedding.

    A second call replaces the reader.
    """
    body = body_of(network)
    name = next((name for name in NAMES if body is not None and isinstance(body.get(name), nn.Module)), None)
    if body is None or name is None:
        raise ModelError(
            f"{type(network).__module__}: no token embedding was found ({', '.join(NAMES)}), so pictures cannot stand in its tokens"
        )
    object.__setattr__(network, READER, reader)
    share_context(network, [])
    object.__setattr__(body, name, ImageEmbedding(network, body, name))
