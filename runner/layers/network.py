"""A network as we call it: one object whose call names its tokens, caches, row lengths, and what the caller will read.

Everything above the layers calls a model through ``Network``: the engine, the scorer and the checks. It hands the call's
arguments to our layers, and splits the network in body and head where the caller reads hidden states. Ids of pictures become the
tokenizer's own placeholder, and their features go to the layer that puts them over the placeholder's embedding.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal, cast, overload

import mlx.core as mx
import numpy as np

from ...kernels import backend
from ...kernels.fused_logprobs import Product
from ..caches.image_blocks import ImageBlocks, attends_in_blocks, require_whole, seen_ahead
from ..caches.row_positions import RowPositions
from ..core.arrays import Ids
from ..core.errors import RowError
from ..core.images import FIRST_IMAGE_ID, ImagePart, ImageTable, PromptImage
from ..patched_layers.call_context import READER, ImageReader, PlacedFeatures, context_of
from ..patched_layers.rope_layers import has_positions
from .kv_cache import Caches, make_caches, set_call_lengths
from .lm_head import Head


class Network:
    """A model of mlx-lm's, and its ``head`` if it can be split. Without a head its states are its logits.

    images: the pictures that tokens may stand for; None where there are none.
    """

    def __init__(self, model: Any, head: Head | None = None, images: ImageTable | None = None):
        self.model, self.head, self.images = model, head, images

    @overload
    def __call__(
        self,
        tokens: mx.array | Ids,
        caches: Caches | None,
        *,
        lengths: list[int] | None = None,
        read: Literal["logits", "states"] = "logits",
    ) -> mx.array: ...

    @overload
    def __call__(
        self, tokens: mx.array | Ids, caches: Caches | None, *, lengths: list[int] | None = None, read: Literal["nothing"]
    ) -> None: ...

    def __call__(
        self,
        tokens: mx.array | Ids,
        caches: Caches | None,
        *,
        lengths: list[int] | None = None,
        read: Literal["logits", "states", "nothing"] = "logits",
    ) -> mx.array | None:
        """Runs ``tokens`` [B, T] on top of what ``caches`` hold, which take them in; None: on top of nothing.

        In an array of NumPy's ids of pictures are looked up; one of mlx's, of a step that is sent ahead, holds none.

        ``lengths`` [B]: how many of the columns from here on are tokens of each row; pads follow. It may be more than T, or
        less than none, where a row's tokens come in several calls. None: all columns are tokens.
        ``read`` says what the caller evaluates: logits [B, T, V] float, hidden states [B, T, H] (see ``logits``), or the
        caches alone, and then there is no result. What nobody reads is not computed.
        Raises ValueError for a part of a picture where pictures see themselves both ways.
        """
        context = context_of(self.model)
        try:
            ids = tokens if isinstance(tokens, np.ndarray) else None
            known = self._plain(ids) if ids is not None else cast(mx.array, tokens)
            rows, width = known.shape
            assert ids is None or self.images is not None or not ids.size or ids.max() < FIRST_IMAGE_ID, "a network without pictures"
            parts = [] if ids is None or self.images is None else self.images.images_in(ids)
            if parts:
                context.pictures = self._placed(parts)
            positions, caches = self._positions(rows, caches, pictures=bool(parts))
            if positions is not None:
                context.positions = positions.take(ids, rows, width, lengths, self.images)
            if parts and attends_in_blocks(self.model):
                caches = self._blocks(parts, (rows, width), caches)
            if lengths is not None:
                if caches is not None:
                    set_call_lengths(caches, lengths, width)
                context.lengths = np.clip(np.array(lengths, np.int64), 0, width)
            context.reads_logits = read == "logits"
            head = None if read == "logits" else self.head
            with backend.one_blas_thread() if context.multiplies else nullcontext():
                made = self.model(known, cache=caches) if head is None else head.states(known, caches)
            return None if read == "nothing" else made
        finally:
            context.lengths, context.reads_logits, context.positions, context.pictures = None, False, None, None

    def _placed(self, parts: list[ImagePart]) -> PlacedFeatures:
        """Returns the features of the pictures in a call."""
        reader: ImageReader | None = getattr(self.model, READER, None)
        assert reader is not None, "ids of pictures went to a network that reads text alone"
        return reader.placed(parts)

    def unread(self, images: Sequence[PromptImage]) -> RowError | None:
        """Returns why a row with these pictures cannot be done: one of them has no features, and zeros stood in their place."""
        reader: ImageReader | None = getattr(self.model, READER, None)
        return None if reader is None or not images else reader.unread(images)

    def _positions(self, rows: int, caches: Caches | None, pictures: bool) -> tuple[RowPositions | None, Caches | None]:
        """Returns the positions at which the rows of a call go on, None where the caches know them, and the layers' caches."""
        if caches and isinstance(last := cast(Any, caches[-1]), RowPositions):
            return last, caches[:-1]
        return RowPositions(rows) if pictures and has_positions(self.model) else None, caches

    def _blocks(self, parts: list[ImagePart], shape: tuple[int, int], caches: Caches | None) -> Caches:
        """Returns the layers' caches as those of a call whose pictures see themselves both ways. Raises ValueError where one is cut."""
        require_whole(parts, shape)
        ahead = seen_ahead(parts, shape)
        return cast(Caches, [ImageBlocks(cache, ahead) for cache in caches or make_caches(self.model, shape[0], padded=False)])

    def _plain(self, tokens: Ids) -> mx.array:
        """Returns the call's tokens as the model knows them."""
        return mx.array(tokens if self.images is None else self.images.plain(tokens))

    def logits(self, states: mx.array) -> mx.array:
        """Returns logits [N, V] of hidden states [N, H], all of which will be read."""
        if self.head is None:
            return states
        with context_of(self.model).reading_logits():
            return self.head.logits(states)

    def product(self, states: mx.array) -> Product | None:
        """Returns the logits of hidden states [N, H] as an uncomputed product; None where they are more than a product."""
        return None if self.head is None else self.head.product(states)
