"""What all encoders have in common: how one is made of its config, called, and given a checkpoint's weights."""

from typing import Any, ClassVar

import mlx.core as mx
from mlx import nn

from ..core.arrays import Ids
from .attention import AttentionMask
from .checkpoint_keys import CheckpointKeys, Weights
from .settings import Config, with_defaults


class Encoder(nn.Module):
    """A network from token ids to hidden states, made of the entries of config.json. Raises ModelError for what it cannot compute.

    ``defaults``: what transformers takes where config.json says nothing. ``weight_names``: those of its weights in checkpoints.
    """

    defaults: ClassVar[Config]
    weight_names: ClassVar[CheckpointKeys]
    width_name: ClassVar[str] = "hidden_size"

    def __init__(self, config: Config):
        super().__init__()
        self.embeddings: Any
        self.blocks: list[Any]
        self._build(self.settings(config))

    def _build(self, config: Config) -> None:
        """Makes the layers. ``config`` is complete."""
        raise NotImplementedError

    def __call__(self, tokens: mx.array | Ids, lengths: list[int], types: mx.array | None = None) -> mx.array:
        """Returns hidden states [B, T, H] of ``tokens`` [B, T]; row i has ``lengths[i]`` tokens, then pads of any id.

        types [B, T]: token types (segments); None: all 0. States of pads are finite and mean nothing.
        """
        return self._states(self.embeddings(mx.array(tokens), types), self._mask(lengths, tokens.shape[1]))

    def _mask(self, lengths: list[int], columns: int) -> AttentionMask:
        """Returns the mask of all blocks."""
        return AttentionMask(lengths, columns)

    def _states(self, x: mx.array, mask: AttentionMask) -> mx.array:
        """Runs the blocks: x [B, T, H] -> the same shape."""
        for block in self.blocks:
            x = block(x, mask)
        return x

    @classmethod
    def settings(cls, config: Config) -> Config:
        """Returns ``config`` with the defaults of its model type."""
        return with_defaults(config, cls.defaults)

    @classmethod
    def hidden_size(cls, config: Config) -> int:
        """Returns H, the width of the states."""
        return cls.settings(config)[cls.width_name]

    @classmethod
    def max_positions(cls, config: Config) -> int:
        """Returns how many tokens a text may have."""
        return cls.settings(config)["max_position_embeddings"]

    @classmethod
    def sanitize(cls, weights: Weights) -> Weights:
        """Returns the body's weights of a checkpoint under the names of our modules, ready to be loaded strictly."""
        return cls.weight_names.body(weights)

    @classmethod
    def head_weights(cls, weights: Weights) -> Weights:
        """Returns the other weights: ``classifier.*``, ``pooler.*``, ``head.*`` and the like, without the prefix of the body.

        Heads of masked language models are left out where their names tell them.
        """
        return cls.weight_names.heads(weights)
