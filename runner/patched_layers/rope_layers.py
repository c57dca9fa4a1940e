"""Rotary embeddings: with our CPU kernel, and with three positions a token.

Three positions are time, height and width (M-RoPE; Qwen2-VL, Wang et al. 2024). Which number of a head turns by which of them the config
says: in three sections one after the other (Qwen2-VL), or taking turns (Qwen3-VL). Where a call holds no picture all three are equal, and
this is plain RoPE.

    [2, 3, 3]           t t h h h w w w
    [3, 3, 2] in turns  t h w t h w t h
"""

from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE, ProportionalRoPE, SuScaledRoPE, YarnRoPE
from numpy.typing import NDArray

from ...kernels import native, rope
from ...kernels.blocks.decoder_block import Angles
from ..caches.call_positions import CallPositions
from .call_context import CallContext, share_context
from .cpu_layers import run_kernel

TURNING = "_turning"  # where a rotation of ours keeps its frequencies: not among a module's parameters
POSITIONS = "_row_positions"  # a mark on a network whose caches hold its rows' positions: not among a module's parameters
TAKING_TURNS = ("qwen3",)  # model types that begin so take turns even if their config does not say it


@dataclass(slots=True, frozen=True)
class Turning:
    """How a layer rotates: the arguments of ``rope.reference``. frequencies: [R / 2]."""

    frequencies: mx.array
    scale: float = 1.0
    neighbours: bool = False
    magnitude: float = 1.0

    def on_cpu(self, x: mx.array, offset: int | mx.array) -> mx.array:
        """Rotates x [B, H, T, D] now, by the kernel."""
        return rope.on_cpu(x, self.frequencies, offset, self.scale, self.neighbours, self.magnitude)


class FastRoPE(nn.RoPE):
    """``nn.RoPE`` with a kernel that computes the angles of a step once."""

    _context: CallContext

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x [B, H, T, D] -> the same shape."""
        if self.training or not rope.suits(x, self.dims, offset):
            return super().__call__(x, offset)  # pyright: ignore[reportArgumentType]
        return run_kernel(
            self._context.used,
            "rotation",
            lambda: self.turning().on_cpu(x, offset),
            lambda: super(FastRoPE, self).__call__(x, offset),  # pyright: ignore[reportArgumentType]
        )

    def turning(self) -> Turning:
        """Returns how the layer rotates. Its ``dims`` are even."""
        return Turning(rope.frequencies(self.dims, self.base), self.scale, self.traditional)


def _by_frequencies(original: Any, dims: str = "dims", magnitude: str | None = None) -> Any:
    """Makes a class of rotations by frequencies of their own, with the same kernel. dims, magnitude: attributes that hold these."""

    class FastRotation(original):
        """A rotation with a kernel that computes the angles of a step once."""

        _context: CallContext

        def __call__(self, x: mx.array, offset: int | mx.array = 0, **settings: Any) -> mx.array:
            """x [B, H, T, D] -> the same shape. settings: of the original; they leave the call to it."""
            if self.training or settings or not rope.suits(x, getattr(self, dims), offset):
                return super().__call__(x, offset, **settings)
            return run_kernel(
                self._context.used,
                "rotation",
                lambda: self.turning().on_cpu(x, offset),
                lambda: super(FastRotation, self).__call__(x, offset),
            )

        def turning(self) -> Turning:
            """Returns how the layer rotates. ``_freqs`` are positions per radian."""
            if TURNING not in self.__dict__:
                by = 1.0 if magnitude is None else getattr(self, magnitude)
                made = Turning(native.dense(mx.reciprocal(self._freqs)), 1.0, getattr(self, "traditional", False), by)
                object.__setattr__(self, TURNING, made)  # not among the module's parameters
            return self.__dict__[TURNING]

    return FastRotation


FREQUENCIES: dict[type, type] = {
    Llama3RoPE: _by_frequencies(Llama3RoPE),
    YarnRoPE: _by_frequencies(YarnRoPE, magnitude="mscale"),
    SuScaledRoPE: _by_frequencies(SuScaledRoPE, "dim", "_scale"),
    ProportionalRoPE: _by_frequencies(ProportionalRoPE),
}
ROTATIONS = (nn.RoPE, *FREQUENCIES)  # mlx's classes that the kernel serves, and with them those derived from them here


@dataclass(slots=True, frozen=True)
class Sections:
    """How many numbers of a head's half turn by time, height and width. ``turns``: they alternate."""

    counts: tuple[int, int, int]
    turns: bool = False

    @property
    def axes(self) -> NDArray[np.intp]:
        """Returns by which position each number of half a head turns, [R / 2]: 0 time, 1 height, 2 width."""
        if not self.turns:
            return np.repeat(np.arange(3), self.counts)
        axes = np.zeros(sum(self.counts), np.intp)
        for axis in (1, 2):
            axes[axis : 3 * self.counts[axis] : 3] = axis
        return axes


def sections_of(config: dict[str, Any]) -> Sections | None:
    """Returns the sections that a checkpoint's config asks for; None where its model has one position a token.

    They stand in ``rope_scaling`` (hub, transformers 4) or ``rope_parameters`` (transformers 5), of the text's config or of the whole.
    """
    for part in (config.get("text_config"), config):
        for name in ("rope_parameters", "rope_scaling"):
            scaling = part.get(name) if isinstance(part, dict) else None
            if isinstance(scaling, dict) and isinstance(counts := scaling.get("mrope_section"), list) and len(counts) == 3:
                turns = bool(scaling.get("mrope_interleaved")) or str(config.get("model_type")).startswith(TAKING_TURNS)
                return Sections((int(counts[0]), int(counts[1]), int(counts[2])), turns)
    return None


class SectionedRope(nn.RoPE):
    """``nn.RoPE`` that turns by the positions of the network's call, where that names some."""

    _context: CallContext
    axes: NDArray[np.intp]  # set by ``turn_by_sections``; not among a module's parameters

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """x [B, H, T, D] -> the same shape. offset: for a call that names no positions."""
        positions = self._context.positions
        if positions is None:
            return super().__call__(x, offset)  # pyright: ignore[reportArgumentType]
        plain = super().__call__(x, positions.offset)  # pyright: ignore[reportArgumentType]
        if positions.sections is None:
            return plain
        cosines, sines = positions.angles(self._plainly, self._kind, self.axes)
        turned = rope.turned(x.astype(mx.float32), cosines[:, None], sines[:, None], self.traditional).astype(x.dtype)
        return mx.where(mx.array(cast(Any, positions.even))[:, None, None, None], plain, turned)

    def tables(self, positions: CallPositions) -> Angles:
        """Returns the cosines and sines [B, T, R / 2] of a call with pictures."""
        return positions.tables(self._plainly, self._kind, self.axes)

    @property
    def _kind(self) -> str:
        return f"{self.dims} {self.base} {self.scale}"

    def _plainly(self, x: mx.array, positions: mx.array) -> mx.array:
        """Turns x [N, 1, 1, R] by positions [N], in pairs (i, i + R / 2), in float32."""
        if not self.traditional:
            return super().__call__(x, positions)  # pyright: ignore[reportArgumentType]
        neighbours = x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape)
        out = super().__call__(neighbours, positions)  # pyright: ignore[reportArgumentType]
        return out.reshape(*x.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(x.shape)


class FastSectionedRope(SectionedRope, FastRoPE):
    """``SectionedRope`` with ``FastRoPE``'s kernel where all three positions are equal."""


def turn_by_sections(network: Any, sections: Sections) -> None:
    """Makes a network's rotary embeddings turn by three positions; its caches then hold those of the rows (``RowPositions``).

    Raises ValueError where the sections do not fit the embeddings, or these are of another kind than ``nn.RoPE``.
    """
    axes, layers = sections.axes, list[Any]()
    for name, layer in network.named_modules():
        if name.rpartition(".")[2] != "rope":
            continue
        if type(layer) not in SECTIONED or layer.dims != 2 * len(axes):
            raise ValueError(f"{name} ({type(layer).__name__}) cannot turn by the sections {list(sections.counts)} of the config")
        layer.__class__ = SECTIONED[type(layer)]
        object.__setattr__(layer, "axes", axes)
        layers.append(layer)
    if not layers:
        raise ValueError("the network has no rotary embeddings")
    share_context(network, layers)
    object.__setattr__(network, POSITIONS, True)


def has_positions(network: Any) -> bool:
    """Returns True for a network that turns by sections."""
    return getattr(network, POSITIONS, False)


SECTIONED: dict[type, type] = {
    nn.RoPE: SectionedRope,
    FastRoPE: FastSectionedRope,
    SectionedRope: SectionedRope,
    FastSectionedRope: FastSectionedRope,
}
