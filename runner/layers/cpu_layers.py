"""Layers of mlx with the CPU's kernels: projections, norms, rotations. A layer that has a class of these computes its output when it is
called, where mlx names what is to be computed; for what the kernels are not made for, training too, it is what it was.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE

from ...kernels import linear, native, rms_norm, rope
from ...kernels.fused_logprobs import Product
from .call_context import CallContext, ListedProduct

VOCABULARY = 8192  # outputs of a projection that makes logits: some are named and never read


def run_kernel(used: set[str], name: str, fast: Callable[[], mx.array], original: Callable[[], mx.array]) -> mx.array:
    """What ``fast`` computes with the kernel ``name``, which is noted in ``used``; what ``original`` does where mlx traces the call."""
    try:
        result = fast()
    except native.Traced:
        return original()
    used.add(name)
    return result


def _listed(context: CallContext, array: mx.array, x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """The lazy ``array`` itself, which is put on the call's list of products where it keeps one."""
    if context.listed is not None:
        context.listed.append(ListedProduct(array, Product(x, weight, bias)))
    return array


def _computes(context: CallContext, x: mx.array, weight: mx.array, bias: mx.array | None = None) -> bool:
    """True when a product is the kernel's to compute now."""
    read = weight.shape[0] < VOCABULARY or context.reads_logits
    return context.listed is None and read and linear.suits(x, weight, bias)


class FastLinear(nn.Linear):
    """``nn.Linear`` with the kernel for products."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        weight, bias = self["weight"], self.get("bias")
        if self.training or not _computes(self._context, x, weight, bias):
            return _listed(self._context, super().__call__(x), x, weight, bias)
        return run_kernel(self._context.used, "linear", lambda: linear.on_cpu(x, weight, bias), lambda: super(FastLinear, self).__call__(x))


class FastEmbedding(nn.Embedding):
    """``nn.Embedding`` with the kernel for products where it makes logits."""

    _context: CallContext

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., V]."""
        weight = self["weight"]
        if self.training or not _computes(self._context, x, weight):
            return _listed(self._context, super().as_linear(x), x, weight)
        return run_kernel(self._context.used, "linear", lambda: linear.on_cpu(x, weight), lambda: super(FastEmbedding, self).as_linear(x))


class FastRMSNorm(nn.RMSNorm):
    """``nn.RMSNorm`` in one pass."""

    _context: CallContext

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., D] -> the same shape."""
        weight = self["weight"]
        if self.training or not rms_norm.suits(x, weight):
            return super().__call__(x)
        return run_kernel(
            self._context.used, "norm", lambda: rms_norm.on_cpu(x, weight, self.eps), lambda: super(FastRMSNorm, self).__call__(x)
        )


class FastRoPE(nn.RoPE):
    """``nn.RoPE`` that makes the angles of a step once."""

    _context: CallContext

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x [B, H, T, D] -> the same shape."""
        if self.training or not rope.suits(x, self.dims, offset):
            return super().__call__(x, offset)  # pyright: ignore[reportArgumentType]
        return run_kernel(
            self._context.used,
            "rotation",
            lambda: rope.on_cpu(x, rope.frequencies(self.dims, self.base), offset, self.scale, self.traditional),
            lambda: super(FastRoPE, self).__call__(x, offset),  # pyright: ignore[reportArgumentType]
        )


class FastLlama3RoPE(Llama3RoPE):
    """mlx-lm's ``Llama3RoPE`` likewise."""

    _context: CallContext

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x [B, H, T, D] -> the same shape."""
        if self.training or not rope.suits(x, 2 * len(self._freqs), offset):
            return super().__call__(x, offset)  # pyright: ignore[reportArgumentType]
        return run_kernel(
            self._context.used,
            "rotation",
            lambda: rope.on_cpu(x, self.inverse(), offset, 1.0, self.traditional),
            lambda: super(FastLlama3RoPE, self).__call__(x, offset),  # pyright: ignore[reportArgumentType]
        )

    def inverse(self) -> mx.array:
        """Radians a position; ``_freqs`` are positions a radian."""
        if "_inverse" not in self.__dict__:
            object.__setattr__(self, "_inverse", native.dense(mx.reciprocal(self._freqs)))  # not among the module's parameters
        return self.__dict__["_inverse"]


LAYERS: dict[type, type] = {
    nn.Linear: FastLinear,
    nn.Embedding: FastEmbedding,
    nn.RMSNorm: FastRMSNorm,
    nn.RoPE: FastRoPE,
    Llama3RoPE: FastLlama3RoPE,
}
