"""Pictures without pixels, a tower that makes random features of them, and a network's slow truth on rows that hold them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_bulk.runner.core.images import ImageTable, PromptImage
from mlx_bulk.runner.core.requests import Generate, Prompt, Request, Sample, Sampling
from mlx_bulk.runner.patched_layers.call_context import PlacedFeatures, context_of
from mlx_bulk.runner.vision.features import ImageFeatures
from mlx_bulk.runner.vision.image_embedding import ImageEmbedding
from numpy.typing import NDArray

PLACEHOLDER = 9


class NoiseTower:
    """Makes features [tokens, width] of a picture's digest, and notes the digests."""

    def __init__(self, width: int = 64, scale: float = 1.0):
        self.width, self.scale, self.seen = width, scale, list[str]()

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def levels(self) -> int:
        return 0

    def make_ready(self) -> None:
        """It has no weights."""

    def features(self, image: PromptImage) -> ImageFeatures:
        self.seen.append(image.digest)
        noise = np.random.default_rng(sum(image.digest.encode())).standard_normal((image.tokens, self.width))
        return ImageFeatures(mx.array((self.scale * noise).astype(np.float32)))


@dataclass(frozen=True, slots=True)
class PictureTile:
    """Some of a picture's tokens, where others stand between."""

    image: PromptImage
    begin: int
    end: int

    @property
    def ids(self) -> NDArray[np.int32]:
        return self.image.ids[self.begin : self.end]


Part = Sequence[int] | PromptImage | PictureTile


def pictures_of(parts: Sequence[Part]) -> tuple[PromptImage, ...]:
    """The pictures of a row, in their order."""
    found = (part.image if isinstance(part, PictureTile) and not part.begin else part for part in parts)
    return tuple(part for part in found if isinstance(part, PromptImage))


def picture(table: ImageTable, digest: str, tokens: int) -> PromptImage:
    return table.register(digest, tokens, (1, 1, tokens), dict)


def picture_ids(*parts: Part) -> list[int]:
    """Token ids of texts and pictures, one after another."""
    return [int(i) for part in parts for i in (part.ids if isinstance(part, PromptImage | PictureTile) else part)]


def picture_request(row: int, parts: Sequence[Part], sampling: Sampling, samples: int = 1) -> Request:
    ids = np.array(picture_ids(*parts), np.int32)
    return Request(
        row, Prompt("", ids, np.zeros_like(ids), pictures_of(parts)), Generate(sampling, tuple(Sample(i, i) for i in range(samples)))
    )


def true_logprobs(network: Any, table: ImageTable, tower: NoiseTower, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log-softmax [T, V] of one row by itself: the whole row's embeddings are made here, and given to mlx-lm's model in one call."""
    row = np.array(ids, np.int32)
    body = network.model
    embedded = np.array(body["embed_tokens"](mx.array(table.plain(row))))
    for part in table.images_in(row):
        embedded[part.indices] = np.array(tower.features(part.image).embeddings)[part.offsets]
    logits = np.array(network(mx.array(table.plain(row))[None], input_embeddings=mx.array(embedded)[None])[0]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def shift_features(monkeypatch: pytest.MonkeyPatch, network: Any) -> None:
    """Lets the features of a batch go to the row behind their own; a row alone keeps its own."""
    right = ImageEmbedding.__call__

    def shifted(self: ImageEmbedding, ids: mx.array) -> mx.array:
        context = context_of(network)
        if ids.shape[0] > 1 and (placed := context.pictures) is not None:
            context.pictures = PlacedFeatures((placed.indices + ids.shape[1]) % ids.size, placed.embeddings)
        return right(self, ids)

    monkeypatch.setattr(ImageEmbedding, "__call__", shifted)
