"""Layers of mlx-lm that are mended, on every device, as classes derived from mlx-lm's own.

Gemma 3's embeddings in float32: mlx-lm scales them by the root of their size in bfloat16, transformers in their own precision.
Gemma 2's attention in a batch: its scores have five axes where heads share keys, and a batch's mask has four.
Experts in half precision on a CPU: mlx multiplies rows of experts there in float32 alone.
GPT-2's table of positions: mlx reads memory behind it for a row that has ended at the last position and stays in its batch.
"""

from math import sqrt
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models import gemma2, gpt2, gpt_bigcode
from mlx_lm.models.gemma3_text import Gemma3Model
from mlx_lm.models.switch_layers import SwitchLinear

from ...kernels import backend, grouped_linear, native


class ScaledEmbedding(nn.Embedding):
    """``nn.Embedding`` whose vectors are multiplied by ``factor``. As an LM head it is ``nn.Embedding``."""

    factor: float  # set by ``mend_layers``; not among a module's parameters

    def __call__(self, x: mx.array) -> mx.array:
        """x [...] -> [..., K]."""
        return super().__call__(x) * self.factor


class ScaledQuantizedEmbedding(nn.QuantizedEmbedding):
    """The same of ``nn.QuantizedEmbedding``."""

    factor: float

    def __call__(self, x: mx.array) -> mx.array:
        """x [...] -> [..., K]."""
        return super().__call__(x) * self.factor


SCALED: dict[type, type] = {nn.Embedding: ScaledEmbedding, nn.QuantizedEmbedding: ScaledQuantizedEmbedding}


class PositionTable(nn.Embedding):
    """``nn.Embedding`` of which positions behind the last take the last one's vector."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [...] -> [..., K]."""
        return super().__call__(mx.minimum(x, self["weight"].shape[0] - 1))


class QuantizedPositionTable(nn.QuantizedEmbedding):
    """The same of ``nn.QuantizedEmbedding``."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [...] -> [..., K]."""
        return super().__call__(mx.minimum(x, self["weight"].shape[0] - 1))


TABLES: dict[type, type] = {nn.Embedding: PositionTable, nn.QuantizedEmbedding: QuantizedPositionTable}


class CappedAttention(gemma2.Attention):
    """Gemma 2's attention, which caps its scores; ``mask`` may be a batch's [B, 1, T, L]."""

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        """x [B, T, D] -> the same shape."""
        if mask is not None and mask.ndim == 4 and self.repeats > 1:  # its scores are [B, heads of keys, repeats, T, L]
            mask = mx.expand_dims(mask, 2)
        return super().__call__(x, mask, cache)


class HalfExperts(SwitchLinear):
    """``SwitchLinear`` whose weights stay in half precision and are multiplied in float32. The result has x's precision.

    In memory there is a float32 copy of one expert's weight at a time, or of all where no kernel serves (``experts_workspace``).
    """

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """x [..., 1, K], indices [...] -> [..., 1, N]."""
        wide, weight = x.astype(mx.float32), self["weight"]
        bias = self["bias"].astype(mx.float32) if "bias" in self else None
        try:
            serves = not self.training and grouped_linear.suits(wide, weight, indices, bias)
            product = (grouped_linear.on_cpu if serves else grouped_linear.reference)(wide, weight, indices, bias)
        except native.Traced:
            product = grouped_linear.reference(wide, weight, indices, bias)
        return product.astype(x.dtype)


MENDED = (CappedAttention, *SCALED.values(), *TABLES.values())  # HalfExperts follow the precision, which a twin gets later


def experts_workspace(network: Any) -> int:
    """Returns the bytes that a call of the network takes for copies of experts' weights in float32."""
    return max((grouped_linear.copied_bytes(layer.weight) for layer in network.modules() if isinstance(layer, HalfExperts)), default=0)


def _mend_experts(network: Any, wherever: bool = False) -> None:
    for layer in network.modules():
        if type(layer) is SwitchLinear and (wherever or layer.weight.dtype != mx.float32):
            layer.__class__ = HalfExperts


def mend_layers(network: Any) -> None:
    """Gives a network's layers the classes above where they need them. Twice is as good as once."""
    for layer in network.modules():
        if isinstance(layer, Gemma3Model):
            _scale_exactly(layer)
        elif type(layer) is gemma2.Attention:
            layer.__class__ = CappedAttention
        elif isinstance(layer, gpt2.GPT2Model | gpt_bigcode.GPTBigCodeModel):
            table: Any = layer.wpe
            table.__class__ = TABLES.get(type(table), type(table))
    if backend.device_name() == "cpu":
        _mend_experts(network)


def mended_alike(network: Any, other: Any) -> None:
    """Mends ``network``, of the same model file as ``other``, if that is mended."""
    if any(isinstance(layer, MENDED) for layer in other.modules()):
        mend_layers(network)
    if any(isinstance(layer, HalfExperts) for layer in other.modules()):
        _mend_experts(network, wherever=True)  # it gets the other's precision later


def _scale_exactly(body: Gemma3Model) -> None:
    """Makes up for what the rounded root leaves out, in float32."""
    embedding: Any = body.embed_tokens
    if type(embedding) in SCALED and embedding(mx.array([0])).dtype == mx.float32:
        root = sqrt(body.args.hidden_size)
        object.__setattr__(embedding, "factor", root / float(mx.array(root, mx.bfloat16).astype(mx.float32)))
        embedding.__class__ = SCALED[type(embedding)]
