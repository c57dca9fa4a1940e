"""Tells our layers about the current call of their network, and takes their reports about it.

mlx-lm's modules pass no arguments of ours on to the layers inside them. So all layers of ours in one network share one
``CallContext``: ``Network`` fills it in before a call and empties it afterwards. A network without our layers needs none.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from ...kernels.fused_logprobs import Product
from ..caches.call_positions import CallPositions
from ..core.errors import RowError
from ..core.images import ImagePart, PromptImage

CONTEXT = "_context"  # where a network and each layer of ours keep it: not among a module's parameters
BUILT = "_built"  # where a layer of ours keeps what was built of its weights, likewise
READER = "_image_reader"  # where a network keeps its ``ImageReader``


@dataclass(slots=True, frozen=True)
class ListedProduct:
    """A product that a layer has not computed, and the lazy array that stands for it."""

    array: mx.array
    product: Product


@dataclass(slots=True, frozen=True)
class PlacedFeatures:
    """Features of pictures, and their places in a call's tokens [B, T].

    indices: [N], places in the flat tokens. embeddings: [N, H], what stands there in place of a token's embedding. deepstack: for each of
    the first layers [N, H], what is added to its hidden states there (Qwen3-VL); empty for other models.
    """

    indices: NDArray[np.int64]
    embeddings: mx.array
    deepstack: tuple[mx.array, ...] = ()


class ImageReader(Protocol):
    """What makes features of pictures for one network."""

    def placed(self, parts: list[ImagePart]) -> PlacedFeatures:
        """Returns the features of a call's pictures; zeros for one that has none, see ``unread``."""
        ...

    def unread(self, images: Sequence[PromptImage]) -> RowError | None:
        """Returns why one of a row's pictures has no features; None where nothing is wrong with them."""
        ...


@dataclass(slots=True)
class CallContext:
    """One network's current call. Outside of a call everything is as in a call by a stranger to this package.

    ``lengths`` [B]: each row's tokens in this call; pads follow them. None: there are no pads, or the caches know them.
    ``reads_logits``: all logits of the call will be read, so the LM head's kernel computes them at once.
    ``listed``: layers list their products here and compute none.
    ``whole_blocks``: a decoder block is one kernel call; else its layers compute one by one, as in an adapted block.
    ``pictures``: the features that stand in the call's tokens; None where there are no pictures.
    ``used``: names of the kernels that have computed something since it was cleared.
    ``packs``: projections, experts' too, hold their weights packed too.
    ``vocabulary``: the width of the logits. A projection with as many outputs makes them. 0 where nothing does.
    ``multiplies``: our kernels compute nearly all of the network's products with weights, so the BLAS needs few cores.
    ``positions``: of the call's tokens, for a network whose rows can hold pictures. None: the caches know them.
    """

    lengths: NDArray[np.int64] | None = None
    reads_logits: bool = False
    listed: list[ListedProduct] | None = None
    whole_blocks: bool = True
    pictures: PlacedFeatures | None = None
    used: set[str] = field(default_factory=set[str])
    positions: CallPositions | None = None
    packs: bool = False
    vocabulary: int = 0
    multiplies: bool = False

    def __deepcopy__(self, memo: Any) -> "CallContext":
        """A copied network has calls of its own."""
        return CallContext(vocabulary=self.vocabulary, multiplies=self.multiplies)

    @contextmanager
    def reading_logits(self) -> Generator[None]:
        """Within this block all logits are read."""
        before, self.reads_logits = self.reads_logits, True
        try:
            yield
        finally:
            self.reads_logits = before

    @contextmanager
    def listing(self) -> Generator[list[ListedProduct]]:
        """Within this block products are listed and left to mlx, which computes those that are evaluated."""
        before, self.listed = self.listed, []
        try:
            yield self.listed
        finally:
            self.listed = before

    @contextmanager
    def layer_by_layer(self) -> Generator[None]:
        """Within this block no decoder block is one kernel call."""
        before, self.whole_blocks = self.whole_blocks, False
        try:
            yield
        finally:
            self.whole_blocks = before


def context_of(model: Any) -> CallContext:
    """Returns the context that our layers in ``model`` share; a new one, which nobody reads, where it has none."""
    return getattr(model, CONTEXT, None) or CallContext()


def share_context(model: nn.Module, layers: list[nn.Module]) -> None:
    """Gives ``layers`` of ``model``, and the model itself, the context of its calls."""
    context = context_of(model)
    for module in (model, *layers):
        object.__setattr__(module, CONTEXT, context)


def drop_context(model: nn.Module, layers: list[nn.Module]) -> None:
    """Takes it from ``layers``, and from the model if no other layer has it and it reads no pictures."""
    for layer in layers:
        layer.__dict__.pop(CONTEXT, None)
    if not reads_pictures(model) and not any(CONTEXT in layer.__dict__ for layer in model.modules() if layer is not model):
        model.__dict__.pop(CONTEXT, None)


def reads_pictures(model: Any) -> bool:
    """Returns whether something makes features of pictures for ``model``."""
    return getattr(model, READER, None) is not None
