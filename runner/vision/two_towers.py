"""The body of a model with two towers (CLIP, SigLIP): a row is a text or a picture, and its state is a vector in their common space.

A picture is encoded once in however many rows it stands, as in language models: its vector is kept by its digest.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten

from ..core.arrays import Ids
from ..core.errors import DataError, ModelError, RowError, first_line, is_out_of_memory
from ..core.images import ImageTable, PromptImage
from ..encoders.cpu_blocks import packed_bytes, substitute_layers
from ..encoders.text_towers import TextTower
from ..patched_layers.layer_patching import make_dense
from .features import FeatureCache, ImageFeatures
from .image_encoder import ImageEncoder


class ImageTower:
    """A vision encoder, called with one picture at a time. Implements ``FeatureMaker``: a picture's one feature is its vector."""

    levels = 0

    def __init__(self, encoder: ImageEncoder):
        self.encoder = encoder

    @property
    def nbytes(self) -> int:
        """The bytes of the weights, those packed for the CPU's kernels too."""
        arrays: list[Any] = [array for _, array in tree_flatten(self.encoder.parameters())]
        return sum(array.nbytes for array in arrays) + packed_bytes(self.encoder)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.encoder.dimensions

    def make_ready(self) -> None:
        """Reads the weights, and puts in the CPU's kernels where vectors of noise stay the same with them."""
        mx.eval(self.encoder.parameters())
        make_dense(self.encoder)
        noise = np.random.default_rng(2).standard_normal((2, 3, self.encoder.image_size, self.encoder.image_size)).astype(np.float32)
        substitute_layers(self.encoder, lambda: np.array(self.encoder(mx.array(noise)).astype(mx.float32)))

    def features(self, image: PromptImage) -> ImageFeatures:
        """Returns a picture's vector, computed. Raises DataError where it cannot be read any more, ModelError where the tower fails."""
        try:
            pixels: Any = image.inputs()["pixel_values"]
            vector = self.encoder(mx.array(pixels))
            finite = mx.isfinite(vector).all()
            mx.eval(vector, finite)
        except Exception as error:  # an image processor may fail in any way
            if isinstance(error, DataError) or is_out_of_memory(error):
                raise
            raise ModelError(f"the vision tower fails on a picture: {first_line(error)}") from error
        if not finite:
            raise ModelError("the vision tower's vector of a picture is NaN or infinite")
        return ImageFeatures(vector)


class TwoTowers(nn.Module):
    """Texts and pictures to vectors. images: the pictures that ids may stand for; None for rows of text alone."""

    def __init__(self, texts: TextTower, features: FeatureCache, images: ImageTable | None = None):
        super().__init__()
        self.texts = texts
        self._features, self._images = features, images

    def reading(self, images: ImageTable) -> "TwoTowers":
        """Returns the body for rows with these pictures, around the same towers."""
        return TwoTowers(self.texts, self._features, images)

    def unread(self, images: Sequence[PromptImage]) -> RowError | None:
        """Returns why one of a row's pictures has no vector; None where nothing is wrong with them."""
        return self._features.unread(images)

    def __call__(self, tokens: mx.array | Ids, lengths: list[int], types: mx.array | None = None) -> mx.array:
        """Returns vectors [B, 1, D] of ``tokens`` [B, T]. A row is a text, or the ids of one picture."""
        if self._images is None or isinstance(tokens, mx.array):
            return self.texts(tokens, lengths, types)
        parts = self._images.images_in(tokens)
        if not parts:
            return self.texts(tokens, lengths, types)
        rows = [np.unique(part.indices // tokens.shape[1]) for part in parts]
        shown = np.zeros(len(tokens), bool)
        shown[np.concatenate(rows)] = True
        vectors = mx.zeros((len(tokens), 1, self._features.tower.width))
        if not shown.all():  # texts keep the shape of their batch; in the place of a picture is a text of one token
            ids = np.where(shown[:, None], 0, tokens)[:, : self.texts.positions]
            vectors = self.texts(ids, [1 if picture else length for picture, length in zip(shown, lengths, strict=True)], types)
        for part, own in zip(parts, rows, strict=True):
            vectors[mx.array(own)] = self._features.of(part.image).embeddings[0].astype(vectors.dtype)
        return vectors
