"""An encoder's blocks as one CPU kernel call each, put in if its states stay the same.

As decoders' blocks (``patched_layers/cpu_blocks.py``): a block gets a class of ours, which leaves to mlx what the kernel is not made for.
Weights are packed at the first call, and again where they have changed. Pads are not computed.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from ...kernels import attention, linear, native
from ...kernels.blocks import encoder_block
from ...kernels.blocks.encoder_block import EncoderConstants, EncoderWeights, PackedBlock
from ..core.errors import first_line
from ..patched_layers.call_context import BUILT, CallContext, context_of
from ..patched_layers.cpu_layers import FastGELU, FastLayerNorm, FastLinear, run_kernel
from ..patched_layers.layer_patching import CLASSES, patch_layers, unpatch_layers
from .attention import AttentionMask
from .blocks import PostNormBlock, PreNormBlock
from .encoder import Encoder

log = logging.getLogger("mlx_bulk")

PRODUCTS = ("qkv", "attention_output", "mlp_input", "mlp_output")
NORMS = ("attention_norm", "mlp_norm")
LENGTHS = (23, 1, 90)  # tokens of the trial's rows; ModernBERT sees 64 each way
# Largest difference of a state allowed, as a share of the states' spread: rounding moves them by 1e-5 of it, a wrong mask by a tenth.
TOLERANCE = 1e-3


@dataclass(slots=True)
class PackedLayer:
    """A block for the kernel, None where the kernel can't serve it, and the weights that it was packed of."""

    of: native.Places
    block: PackedBlock | None

    def __deepcopy__(self, memo: Any) -> None:
        """Returns None: a copied block packs its own weights."""


def _packed(layer: Any) -> PackedBlock | None:
    """Returns the kernel's block for a layer with its present weights; None where the kernel can't serve it. Raises Traced."""
    arrays = _arrays(layer)
    if arrays is None or not native.suits(*arrays.values()):
        return None
    built: PackedLayer | None = layer.__dict__.get(BUILT)
    if built is None or not built.of.hold(list(arrays.values())):
        built = PackedLayer(native.Places(list(arrays.values())), _build(layer, arrays))
        object.__setattr__(layer, BUILT, built)  # not among the layer's parameters
    return built.block


def _arrays(layer: Any) -> dict[str, mx.array] | None:
    """Returns a layer's weights by its own names; None where a part is not one of our classes: quantized, or adapted."""
    found: dict[str, mx.array] = {}
    for name, cls in (*((name, FastLinear) for name in PRODUCTS), *((name, FastLayerNorm) for name in NORMS)):
        part = layer[name]
        if name == "attention_norm" and type(part) is nn.Identity:  # ModernBERT's first block
            continue
        if type(part) is not cls:
            return None
        found |= {f"{name}.{key}": part[key] for key in ("weight", "bias") if key in part}
    return found


def _build(layer: Any, arrays: dict[str, mx.array]) -> PackedBlock | None:
    """Packs a layer's weights; None where the kernel has not its activation, or a layer norm behind a residual is missing."""
    activation, first_norms = _activation(layer["activation"]), isinstance(layer, PreNormBlock)
    normed = type(layer["attention_norm"]) is FastLayerNorm
    if activation is None or not (first_norms or normed):
        return None
    of, gate, gate_bias = dict(arrays), None, None
    if layer.shape.gated:
        gate, of["mlp_input.weight"] = mx.split(of["mlp_input.weight"], 2)
        if "mlp_input.bias" in of:
            gate_bias, of["mlp_input.bias"] = mx.split(of["mlp_input.bias"], 2)
    weights = EncoderWeights(
        of["qkv.weight"],
        of["attention_output.weight"],
        of["mlp_input.weight"],
        of["mlp_output.weight"],
        gate,
        of.get("qkv.bias"),
        of.get("attention_output.bias"),
        of.get("mlp_input.bias"),
        of.get("mlp_output.bias"),
        gate_bias,
        of.get("attention_norm.weight"),
        of.get("attention_norm.bias"),
        of.get("mlp_norm.weight"),
        of.get("mlp_norm.bias"),
        None if layer.rope is None else layer.rope.frequencies,
    )
    eps = layer["attention_norm"].eps if normed else 0.0
    constants = EncoderConstants(layer.shape.heads, eps, layer["mlp_norm"].eps, first_norms, normed, layer.window, activation)
    return PackedBlock(weights, constants)


def _activation(layer: nn.Module) -> str | None:
    """Returns the kernel's name for an activation, None where it has none."""
    if type(layer) is FastGELU:
        names = {"none": "gelu", "precise": "gelu_tanh", "tanh": "gelu_tanh", "fast": "quick_gelu"}
        return names.get(layer._approx)  # pyright: ignore[reportPrivateUsage]
    others: dict[type[nn.Module], str] = {nn.SiLU: "silu", nn.ReLU: "relu"}
    return others.get(type(layer))


def _fast(original: Any) -> Any:
    """Makes a class of blocks that run as one kernel call."""

    class FastBlock(original):
        """An encoder's block that computes its output when it is called."""

        _context: CallContext

        def __call__(self, x: mx.array, mask: AttentionMask) -> mx.array:
            """x [B, T, H] -> the same shape; the states of pads are 0."""

            def slow() -> mx.array:
                return super(FastBlock, self).__call__(x, mask)

            if not self._context.whole_blocks or self.training or not encoder_block.suits(x, mask.lengths, self.shape.heads, mask.bias):
                return slow()
            try:
                block = _packed(self)
            except native.Traced:
                return slow()
            if block is None or block.d != x.shape[-1]:
                return slow()
            return run_kernel(self._context.used, "block", lambda: block(x, np.array(mask.lengths, np.int64), mask.bias), slow)

        def taken(self, q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None) -> mx.array:
            """As the original's; by NumPy where mlx would multiply with its own slow BLAS."""

            def by_numpy() -> mx.array:
                return attention.on_cpu(q, k, v, scale, mask)

            def original() -> mx.array:
                return super(FastBlock, self).taken(q, k, v, scale, mask)

            serves = linear.numpy_serves() and attention.suits(q, k, v, mask)
            return run_kernel(self._context.used, "attention", by_numpy, original) if serves else original()

    return FastBlock


CLASSES.update({original: _fast(original) for original in (PostNormBlock, PreNormBlock)})


def substitute_blocks(encoder: Encoder, vocabulary: int, positions: int = sys.maxsize) -> tuple[str, ...]:
    """Gives an encoder's layers our classes and tries it before and after. Returns the names of the kernels in use.

    positions: the most tokens that the model takes. Where a call crashes or states differ, mlx's own layers are put back and one warning
    says so. ``kernel_injection.restore`` takes the classes off again.
    """
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, vocabulary, min(n, positions)) for n in LENGTHS]
    return substitute_layers(encoder, lambda: _states(encoder, rows))


def substitute_layers(network: nn.Module, states: Callable[[], NDArray[np.float32]]) -> tuple[str, ...]:
    """Does the same for any network of an encoder's blocks. states: makes some with it."""
    if native.library() is None and not linear.numpy_serves():
        return ()
    unpatch_layers(network)
    truth = states()
    patch_layers(network)
    context = context_of(network)
    context.used.clear()
    try:
        found = states()
        with context.layer_by_layer():
            by_layer = states()
    except Exception as error:
        reason = f"the model crashes ({first_line(error, None)})"
    else:
        names = tuple(sorted(context.used))
        allowed = TOLERANCE * max(float(truth.std()), 1e-3)
        gap = max(float(np.abs(each - truth).max()) for each in (found, by_layer))
        if gap <= allowed:
            return names
        reason = f"states move by {gap:.2g} (allowed {allowed:.2g})"
    unpatch_layers(network)
    log.warning("mlx's own layers stay in place, slower on this CPU: with ours, %s", reason)
    return ()


def packed_bytes(network: nn.Module) -> int:
    """Returns the bytes of the packed weights that the kernel will hold beside a network's own; 0 where it cannot serve."""
    if native.library() is None:
        return 0
    blocks: list[Any] = [layer for layer in network.modules() if isinstance(layer, PostNormBlock | PreNormBlock)]
    parts = [[block[name] for name in PRODUCTS] for block in blocks]
    served = [part for of in parts if all(isinstance(part, nn.Linear) and part.weight.dtype == mx.float32 for part in of) for part in of]
    return sum(linear.bytes_in_vectors(part.weight) for part in served)


def _states(encoder: Encoder, rows: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
    """Returns the states [tokens, H] of some rows in one batch."""
    width = max(map(len, rows))
    tokens = mx.array(np.stack([np.pad(row, (0, width - len(row))) for row in rows]))
    states = np.array(encoder(tokens, [len(row) for row in rows]).astype(mx.float32))
    return np.concatenate([state[: len(row)] for state, row in zip(states, rows, strict=True)])
