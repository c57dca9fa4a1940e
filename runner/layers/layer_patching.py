"""Gives a network's layers our classes, which compute with the CPU kernels, and takes them off again."""

from mlx import nn

from .call_context import drop_context, share_context
from .cpu_blocks import BLOCKS, BUILT
from .cpu_layers import LAYERS
from .cpu_recurrent import CONVOLUTIONS

CLASSES = LAYERS | CONVOLUTIONS | BLOCKS
QUANTIZED = {original: LAYERS[original] for original in (nn.QuantizedLinear, nn.QuantizedEmbedding)}


def patch_layers(network: nn.Module) -> None:
    """Gives a network's layers our classes, in inference mode until someone calls ``train``."""
    _patch(network, CLASSES)


def patch_quantized_layers(network: nn.Module) -> None:
    """Gives quantized layers alone our classes: mlx's products with quantized weights are some hundred times slower on a CPU."""
    _patch(network, QUANTIZED)


def _patch(network: nn.Module, classes: dict[type, type]) -> None:
    for layer in _change(network, classes):
        layer.eval()
    share_context(network, _ours(network))


def unpatch_layers(network: nn.Module) -> None:
    """Gives the layers their own classes again, and frees what the kernels hold of their weights."""
    drop_context(network, _ours(network))
    for layer in _change(network, {ours: original for original, ours in CLASSES.items()}):
        layer.__dict__.pop(BUILT, None)


def is_patched(network: nn.Module) -> bool:
    """Returns True when a layer has a class of ours."""
    return bool(_ours(network))


def _ours(network: nn.Module) -> list[nn.Module]:
    classes = set(CLASSES.values())
    return [layer for layer in network.modules() if type(layer) in classes]


def _change(network: nn.Module, classes: dict[type, type]) -> list[nn.Module]:
    changed = [layer for layer in network.modules() if type(layer) in classes]
    for layer in changed:
        layer.__class__ = classes[type(layer)]
    return changed
