"""Decoder blocks that add a picture's features to their output (DeepStack; Qwen3-VL): each of the first blocks adds features of its own.

They come with the call, and with their places in it, so that batches and calls of any shape add to each picture what is its own.
"""

from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3, qwen3_moe

from .call_context import CallContext, share_context
from .cpu_blocks import BLOCKS


def _stacked(original: Any) -> Any:
    """Makes a class of blocks that add the call's features."""

    class DeepstackBlock(original):
        """A decoder block with features added to its output."""

        _context: CallContext
        level: int  # which of the features: set by ``add_deepstack``; not among a module's parameters

        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            """x [B, T, d] -> the same shape."""
            out, placed = super().__call__(x, mask, cache), self._context.pictures
            if placed is None or self.level >= len(placed.deepstack):
                return out
            flat = out.reshape(-1, out.shape[-1])
            return flat.at[mx.array(placed.indices)].add(placed.deepstack[self.level].astype(out.dtype)).reshape(out.shape)

    return DeepstackBlock


STACKED: dict[type, type] = {original: _stacked(original) for original in (qwen3.TransformerBlock, qwen3_moe.Qwen3MoeDecoderLayer)}
FAST_STACKED: dict[type, type] = {STACKED[original]: _stacked(BLOCKS[original]) for original in STACKED if original in BLOCKS}
_BY_CLASS: dict[type, type] = STACKED | {BLOCKS[original]: FAST_STACKED[STACKED[original]] for original in STACKED if original in BLOCKS}


def add_deepstack(network: Any, levels: int) -> None:
    """Has the first ``levels`` blocks of a network add the features of its calls. Raises ValueError where one cannot."""
    blocks: list[Any] = list(network.layers)[:levels]
    for level, block in enumerate(blocks):
        if type(block) not in _BY_CLASS:
            raise ValueError(f"block {level} ({type(block).__name__}) cannot add a picture's features; expected Qwen3-VL's blocks")
        block.__class__ = _BY_CLASS[type(block)]
        object.__setattr__(block, "level", level)
    share_context(network, blocks)
