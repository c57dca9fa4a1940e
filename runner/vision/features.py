"""Features of pictures, made once and kept by digest, as many as fit a number of bytes. The longest unused go first.

A picture's features are made in a call of their own: in a call with other pictures their last bits differ. What a call of the network
needs stays until that call is done, whatever the bound. A picture of which none can be made costs its own rows: zeros stand in its
place, so that the rows beside it are computed in the same calls, and whoever makes the outcomes asks ``unread``.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np

from ..core.errors import DataError, ModelError, RowError
from ..core.images import ImagePart, PromptImage
from ..images.sources import picture_error
from ..patched_layers.call_context import PlacedFeatures
from .uncompared import UncomparedType

FAILED = 16  # pictures one after another: after so many, the tower is to blame


@dataclass(slots=True, frozen=True)
class ImageFeatures:
    """What a tower makes of one picture: embeddings [tokens, H], and for each of the first layers what is added there [tokens, H]."""

    embeddings: mx.array
    deepstack: tuple[mx.array, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.nbytes for array in (self.embeddings, *self.deepstack))


class FeatureMaker(Protocol):
    """A tower."""

    @property
    def nbytes(self) -> int:
        """The bytes of the weights."""
        ...

    @property
    def width(self) -> int:
        """Numbers of a feature."""
        ...

    @property
    def levels(self) -> int:
        """The first layers of the network to which it adds features."""
        ...

    def make_ready(self) -> None:
        """Reads the weights, and puts in the CPU's kernels."""
        ...

    def features(self, image: PromptImage) -> ImageFeatures:
        """Returns a picture's features, computed. Raises DataError where it cannot be read any more, ModelError where the tower fails."""
        ...


class FeatureCache:
    """Features of ``tower``, of which at most ``most_bytes`` are kept between calls.

    calls: how often the tower has been called. uncompared: the checkpoint, where nobody compared its model type with transformers. Belongs
    to the model's thread. Raises ModelError where the tower fails on ``FAILED`` pictures one after another: then the pictures are not to
    blame.
    """

    def __init__(self, tower: FeatureMaker, most_bytes: int = sys.maxsize):
        self.tower, self.most_bytes, self.calls = tower, most_bytes, 0
        self.uncompared: UncomparedType | None = None
        self._kept: OrderedDict[str, ImageFeatures] = OrderedDict()
        self._bytes = 0
        self._failures: WeakKeyDictionary[PromptImage, str] = WeakKeyDictionary()  # why pictures in memory have no features
        self._failed = 0  # times that the tower has failed one after another

    def placed(self, parts: list[ImagePart]) -> PlacedFeatures:
        """Returns the features of a call's pictures; zeros for one of which none can be made."""
        found = [self.of(part.image) for part in parts]  # holds them all, whatever is dropped from the cache meanwhile
        offsets = [mx.array(part.offsets) for part in parts]
        indices = np.concatenate([part.indices for part in parts])
        embeddings = mx.concatenate([each.embeddings[at] for each, at in zip(found, offsets, strict=True)])
        layers = range(len(found[0].deepstack))
        deepstack = tuple(mx.concatenate([each.deepstack[i][at] for each, at in zip(found, offsets, strict=True)]) for i in layers)
        return PlacedFeatures(indices, embeddings, deepstack)

    def of(self, image: PromptImage) -> ImageFeatures:
        """Returns a picture's features; zeros where none can be made."""
        if image in self._failures:
            return self._zeros(image)
        features = self._kept.pop(image.digest, None)
        if features is None:
            self.calls += 1
            try:
                features = self.tower.features(image)
            except (DataError, ModelError) as error:
                self._note_failure(image, error)
                return self._zeros(image)
            self._failed = 0
            self._bytes += features.nbytes
        self._kept[image.digest] = features
        while self._kept and self._bytes > self.most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return features

    def unread(self, images: Sequence[PromptImage]) -> RowError | None:
        """Returns why one of a row's pictures has no features; None where nothing is wrong with them."""
        for number, image in enumerate(images, 1):
            if (why := self._failures.get(image)) is not None:
                return picture_error(f"picture {number} of {len(images)}: {why}" if len(images) > 1 else why)
        return None

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        return self._bytes

    def clear(self) -> None:
        """Drops all features: the tower has other weights now."""
        self._kept.clear()
        self._bytes = 0

    def __deepcopy__(self, memo: dict[int, object]) -> "FeatureCache":
        """A copied network reads pictures with the same tower: adapters and policies do not change it."""
        return self

    def _zeros(self, image: PromptImage) -> ImageFeatures:
        zeros = mx.zeros((image.tokens, self.tower.width))
        return ImageFeatures(zeros, (zeros,) * self.tower.levels)

    def _note_failure(self, image: PromptImage, error: DataError | ModelError) -> None:
        self._failures[image] = str(error)
        if isinstance(error, ModelError):
            self._failed += 1
            if self._failed == FAILED:
                self._failed = 0
                cure = "look at the checkpoint's tower and at mlx-vlm's version, then continue with the same command"
                raise ModelError(f"{error}; it was so for {FAILED} pictures one after another. What was finished is safe: {cure}")


def share_image_memory(caches: Sequence[FeatureCache | None], gigabytes: float) -> int:
    """Shares ``gigabytes`` among the models that read pictures. Returns the bytes that their features may take: 0 without such a model."""
    kept = [cache for cache in caches if cache is not None]
    for cache in kept:
        cache.most_bytes = int(gigabytes * 1e9) // len(kept)
    return sum(cache.most_bytes for cache in kept)
