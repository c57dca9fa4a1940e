"""mlx-lm's networks as bodies of pooling models: token ids in, hidden states out, without caches.

A decoder is causal: a token sees those before it, and pads behind a row change nothing. Some checkpoints ask for attention both ways
(EmbeddingGemma, ``is_causal: false``); then a stand-in for the caches makes the masks.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from ..caches.cache_stand_ins import BothWays
from ..core.arrays import Ids
from ..core.errors import ModelError, RowError
from ..core.images import ImageTable, PromptImage
from ..layers.lm_head import Head
from ..layers.network import Network
from .both_ways import reads_both_ways, require_attention, window_of

TRIAL = ([5, 6, 7, 8], [5, 6, 7, 9])  # ids that every vocabulary has: two texts that differ in their last token


class DecoderBody(nn.Module):
    """A language model without its head. Raises ValueError where it cannot be split, ModelError where it cannot read both ways.

    images: the pictures that tokens may stand for; None for rows of text alone.
    """

    def __init__(self, network: Any, config: dict[str, Any], images: ImageTable | None = None):
        super().__init__()
        self.network, self._config = network, config
        self._call = Network(network, Head(network), images)
        self._both = reads_both_ways(config)
        if self._both and images is not None:
            raise ModelError(
                "config.json asks for attention both ways over all of a row, and pictures are read forwards; embed texts alone"
            )
        self._layers = require_attention(network) if self._both else 0
        self._window = window_of(config)

    @property
    def call(self) -> Network:
        """The network as it is called."""
        return self._call

    def reading(self, images: ImageTable) -> "DecoderBody":
        """Returns the body for rows with these pictures, around the same network, which has been made to read some."""
        return DecoderBody(self.network, self._config, images)

    def unread(self, images: Sequence[PromptImage]) -> RowError | None:
        """Returns why a row with these pictures has no states: as ``Network.unread``."""
        return self._call.unread(images)

    def __call__(self, tokens: mx.array | Ids, lengths: list[int], types: mx.array | None = None) -> mx.array:
        """tokens [B, T] with pads on the right, lengths [B] -> hidden states [B, T, H]. Decoders know no token types.

        Ids of pictures are looked up in NumPy's arrays.
        """
        if not self._both:
            return self._call(tokens, None, lengths=lengths, read="states")
        caches: Any = [BothWays(lengths, self._window)] * self._layers
        return self._call(tokens, caches, read="states")

    def check(self) -> None:
        """Tries whether the first token sees the last where the config asks for both ways. Raises ModelError where it does not."""
        if not self._both:
            return
        states = self(mx.array(TRIAL), [len(TRIAL[0])] * 2)[:, 0].astype(mx.float32)
        if mx.array_equal(states[0], states[1]):
            found = "mlx-lm's file of this model type looks back alone"
            raise ModelError(f"config.json asks for attention both ways, and {found}; use another model")
