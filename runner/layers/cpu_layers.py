"""Layers of mlx with the CPU's kernels: projections, norms, rotations. A layer that has a class of these computes its output when it is
called, where mlx names what is to be computed; for what the kernels are not made for, training too, it is what it was.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE

from ...kernels import linear, native, rms_norm, rope
from ...kernels.fused_logprobs import Product

VOCABULARY = 8192  # outputs of a projection that makes logits: some are named and never read

taken: set[str] = set()  # names of the kernels that have computed something since it was cleared

_read = False  # whether the logits of the calls that come are read, all of them


@dataclass(slots=True, frozen=True)
class Named:
    """A product that was named and not computed, and the array that stands for it."""

    array: mx.array
    product: Product


_named: list[Named] | None = None  # products of the calls that come, where they are only named


@contextmanager
def listed_products() -> Generator[list[Named]]:
    """While this is entered, products are listed, and left to mlx to compute if it is asked to."""
    global _named
    before, _named = _named, []
    try:
        yield _named
    finally:
        _named = before


@contextmanager
def all_read() -> Generator[None]:
    """While this is entered, logits are computed at once, as nobody names some that nobody reads."""
    global _read
    before, _read = _read, True
    try:
        yield
    finally:
        _read = before


def or_else(name: str, fast: Callable[[], mx.array], original: Callable[[], mx.array]) -> mx.array:
    """What ``fast`` computes with the kernel ``name``, or where mlx traces the call what ``original`` does."""
    try:
        found = fast()
    except native.Traced:
        return original()
    taken.add(name)
    return found


def _name(array: mx.array, x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    if _named is not None:
        _named.append(Named(array, Product(x, weight, bias)))
    return array


def _now(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> bool:
    return _named is None and (weight.shape[0] < VOCABULARY or _read) and linear.suits(x, weight, bias)


class FastLinear(nn.Linear):
    """``nn.Linear`` with the kernel for products."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., N]."""
        weight, bias = self["weight"], self.get("bias")
        if self.training or not _now(x, weight, bias):
            return _name(super().__call__(x), x, weight, bias)
        return or_else("linear", lambda: linear.on_cpu(x, weight, bias), lambda: super(FastLinear, self).__call__(x))


class FastEmbedding(nn.Embedding):
    """``nn.Embedding`` with the kernel for products where it makes logits."""

    def as_linear(self, x: mx.array) -> mx.array:
        """x [..., K] -> [..., V]."""
        weight = self["weight"]
        if self.training or not _now(x, weight):
            return _name(super().as_linear(x), x, weight)
        return or_else("linear", lambda: linear.on_cpu(x, weight), lambda: super(FastEmbedding, self).as_linear(x))


class FastRMSNorm(nn.RMSNorm):
    """``nn.RMSNorm`` in one pass."""

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., D] -> the same shape."""
        weight = self["weight"]
        if self.training or not rms_norm.suits(x, weight):
            return super().__call__(x)
        return or_else("norm", lambda: rms_norm.on_cpu(x, weight, self.eps), lambda: super(FastRMSNorm, self).__call__(x))


class FastRoPE(nn.RoPE):
    """``nn.RoPE`` that makes the angles of a step once."""

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x [B, H, T, D] -> the same shape."""
        if self.training or not rope.suits(x, self.dims, offset):
            return super().__call__(x, offset)  # pyright: ignore[reportArgumentType]
        return or_else(
            "rotation",
            lambda: rope.on_cpu(x, rope.frequencies(self.dims, self.base), offset, self.scale, self.traditional),
            lambda: super(FastRoPE, self).__call__(x, offset),  # pyright: ignore[reportArgumentType]
        )


class FastLlama3RoPE(Llama3RoPE):
    """mlx-lm's ``Llama3RoPE`` likewise."""

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x [B, H, T, D] -> the same shape."""
        if self.training or not rope.suits(x, 2 * len(self._freqs), offset):
            return super().__call__(x, offset)  # pyright: ignore[reportArgumentType]
        return or_else(
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
