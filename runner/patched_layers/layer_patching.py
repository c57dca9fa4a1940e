"""Gives a network's layers our classes, which compute with the CPU kernels, and takes them off again."""

import sys
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import gear, gemma, gemma2, gemma3_text, minimax_m3_vl, muse_glimmer, recurrent_gemma
from mlx_lm.models.activations import SwigluOAI
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from ...kernels import backend, linear, native
from .call_context import BUILT, context_of, drop_context, share_context
from .cpu_blocks import BLOCKS
from .cpu_bodies import BODIES
from .cpu_embeddings import FastEmbedding, FastQuantizedEmbedding, FastScaledEmbedding, FastScaledQuantizedEmbedding
from .cpu_layers import (
    FastCappedAttention,
    FastGELU,
    FastLayerNorm,
    FastLinear,
    FastMultiLinear,
    FastQuantizedLinear,
    FastQuantizedSwitchLinear,
    FastRMSNorm,
    FastSwigluOAI,
    FastSwitchLinear,
    rms_norm_class,
)
from .cpu_recurrent import CONVOLUTIONS
from .deepstack import FAST_STACKED, STACKED
from .mended_layers import CappedAttention, ScaledEmbedding, ScaledQuantizedEmbedding
from .rope_layers import FREQUENCIES, TURNING, FastRoPE, FastSectionedRope, SectionedRope

AROUND_ONE: tuple[type, ...] = (  # RMS norms that multiply by 1 + weight
    gear.GearRMSNorm,
    gemma.RMSNorm,
    gemma2.RMSNorm,
    gemma3_text.RMSNorm,
    minimax_m3_vl.GemmaRMSNorm,
    muse_glimmer.CenteredRMSNorm,
    recurrent_gemma.RMSNorm,
)
LAYERS: dict[type, type] = {
    **{original: rms_norm_class(original, 1.0) for original in AROUND_ONE},
    nn.Linear: FastLinear,
    SwitchLinear: FastSwitchLinear,
    MultiLinear: FastMultiLinear,
    nn.Embedding: FastEmbedding,
    ScaledEmbedding: FastScaledEmbedding,
    nn.QuantizedLinear: FastQuantizedLinear,
    nn.QuantizedEmbedding: FastQuantizedEmbedding,
    ScaledQuantizedEmbedding: FastScaledQuantizedEmbedding,
    QuantizedSwitchLinear: FastQuantizedSwitchLinear,
    nn.RMSNorm: FastRMSNorm,
    nn.LayerNorm: FastLayerNorm,
    nn.GELU: FastGELU,
    CappedAttention: FastCappedAttention,
    SwigluOAI: FastSwigluOAI,
    nn.RoPE: FastRoPE,
    SectionedRope: FastSectionedRope,
    **FREQUENCIES,
}
CLASSES = LAYERS | CONVOLUTIONS | BLOCKS | BODIES | FAST_STACKED
WITH_CONTEXT: set[type] = {SectionedRope, *STACKED.values()}  # need the context of the network's calls on any device
NEARLY_ALL = 0.9  # of the numbers of a network's weights: its other products may have one thread
QUANTIZED = {
    original: LAYERS[original] for original in (nn.QuantizedLinear, nn.QuantizedEmbedding, ScaledQuantizedEmbedding, QuantizedSwitchLinear)
}


def patch_layers(network: nn.Module, vocabulary: int = 0) -> None:
    """Gives the layers our classes, in inference mode until someone calls ``train``. vocabulary: the width of the logits, if any."""
    _patch(network, CLASSES, vocabulary)


def patch_quantized_layers(network: nn.Module, vocabulary: int = 0) -> None:
    """Gives quantized layers alone our classes: mlx's products with quantized weights are some hundred times slower on a CPU."""
    _patch(network, QUANTIZED, vocabulary)


def note_products(network: nn.Module) -> None:
    """Notes in the context of a network's calls whether our kernels compute nearly all of its products with weights, as it is now."""
    classes, ours, whole = set(CLASSES.values()), 0, 0
    for layer in network.modules():
        size = sum(array.size for array in layer.values() if isinstance(array, mx.array) and array.ndim > 1)
        whole += size
        ours += size if type(layer) in classes else 0
        if _is_dora(layer):  # it reads its layer's weight, and multiplies by mlx
            ours -= layer.linear.weight.size
    context_of(network).multiplies = native.library() is not None and ours >= NEARLY_ALL * whole


def _is_dora(layer: nn.Module) -> bool:
    """Returns True for a layer with a DoRA adapter. Imports nothing, as that takes 50 ms: where there is one, it is imported."""
    dora = sys.modules.get("mlx_lm.tuner.dora")
    return dora is not None and isinstance(layer, dora.DoRALinear)


def _patch(network: nn.Module, classes: dict[type, type], vocabulary: int) -> None:
    for layer in _change(network, classes):
        layer.eval()
    share_context(network, _ours(network))
    context_of(network).vocabulary = vocabulary
    note_products(network)


def unpatch_layers(network: nn.Module, frees: bool = True) -> None:
    """Gives the layers their own classes again, and drops what the kernels hold of them. frees: packed weights, too."""
    changed = _change(network, {ours: original for original, ours in CLASSES.items()})
    for layer in changed:
        layer.__dict__.pop(TURNING, None)
        if frees or not isinstance(layer.__dict__.get(BUILT), linear.PackedWeight):
            layer.__dict__.pop(BUILT, None)
    drop_context(network, [layer for layer in changed if type(layer) not in WITH_CONTEXT])


def is_patched(network: nn.Module) -> bool:
    """Returns True when a layer has a class of ours."""
    return bool(_ours(network))


def _ours(network: nn.Module) -> list[nn.Module]:
    classes = set(CLASSES.values())
    return [layer for layer in network.modules() if type(layer) in classes]


def _change(network: nn.Module, classes: dict[type, type]) -> list[nn.Module]:
    found = {id(layer): layer for layer in network.modules() if type(layer) in classes}  # one layer may stand in several places
    changed = list(found.values())
    for layer in changed:
        layer.__class__ = classes[type(layer)]
    return changed


def make_dense(network: Any) -> None:
    """Copies each weight that is a view in another order (a transposed matrix, say), once: a kernel would copy it in each call."""
    if not backend.on_cpu_path():
        return
    arrays: list[Any] = list(tree_flatten(network.parameters()))
    while arrays:
        name, array = arrays.pop()
        if array.dtype == mx.float32 and (dense := native.dense(array)) is not array:
            network.load_weights([(name, dense)], strict=False)
