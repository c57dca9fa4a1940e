"""mlx's embeddings on a CPU, as classes derived from its own and from ours; see ``cpu_layers``."""

import mlx.core as mx
from mlx import nn

from ...kernels import linear, native
from ...kernels.quantized import QuantizedWeight
from .call_context import CallContext
from .cpu_layers import computes_now, listed_product, product_now, run_kernel
from .mended_layers import ScaledEmbedding, ScaledQuantizedEmbedding

FEW_IDS = 1024  # mlx wakes a thread of its own for a look-up: for the ids of a decode step that takes ten times as long as the look-up


class FastEmbedding(nn.Embedding):
    """``nn.Embedding``: few ids are looked up at once. As a tied LM head it has the kernel for matrix products."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """Ids x [...] -> [..., K]."""
        weight = self["weight"]
        if self.training or not 0 < x.size <= FEW_IDS or not native.suits(weight):
            return super().__call__(x)
        try:
            native.evaluate_arrays(x, weight)
        except native.Traced:
            return super().__call__(x)
        return mx.array(native.view(weight)[native.view(x)])

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., V]."""
        weight = self["weight"]
        if self.training or not computes_now(self._context, x, weight):
            return listed_product(self, super().as_linear(x), x, weight)
        return run_kernel(
            self._context.used, "linear", lambda: product_now(self, x, weight), lambda: super(FastEmbedding, self).as_linear(x)
        )


class FastQuantizedEmbedding(nn.QuantizedEmbedding):
    """``nn.QuantizedEmbedding`` with the kernel for matrix products, for a tied LM head."""

    _context: CallContext

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., V]."""
        weight = QuantizedWeight.of(self)
        if self.training or weight is None:
            return super().as_linear(x)
        if not computes_now(self._context, x, weight):
            return listed_product(self, super().as_linear(x), x, weight)
        fast = linear.on_cpu
        return run_kernel(self._context.used, "linear", lambda: fast(x, weight), lambda: super(FastQuantizedEmbedding, self).as_linear(x))


class FastScaledEmbedding(ScaledEmbedding, FastEmbedding):
    """``ScaledEmbedding`` made so."""


class FastScaledQuantizedEmbedding(ScaledQuantizedEmbedding, FastQuantizedEmbedding):
    """``ScaledQuantizedEmbedding`` made so."""
