"""Puts our kernels into a loaded network: on a CPU if its logits stay the same, on CUDA where the checks at load hold them to mlx's.

mlx-lm's model files call attention, activations and recurrences by name: these names get our functions in the files that define the
network's layers.
Projections, norms and rotations are layers of mlx: those of this network get classes of ours. Each substitute calls the original for
what it is not made for: other precisions and devices, quantized caches, functions that mlx compiles. So other models of the same
files stay right. Substitutes have no gradients: they serve inference alone.
"""

import logging
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import activations as mlx_activations
from mlx_lm.models import base, gear
from mlx_lm.models import gated_delta as mlx_gated_delta
from mlx_lm.models import ssm as mlx_ssm
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import get_total_parameters

from ...kernels import attention, elementwise, linear, native
from ...kernels.backend import device_name
from ..patched_layers.call_context import context_of
from ..patched_layers.cpu_layers import FastLinear, FastSwitchLinear, run_kernel
from ..patched_layers.cpu_recurrent import fast_gated_delta, fast_state_space
from ..patched_layers.cuda_attention import attend_on_cuda
from ..patched_layers.joined_projections import has_joined, join_projections, separate_projections
from ..patched_layers.layer_patching import patch_layers, patch_quantized_layers, unpatch_layers
from .network import Network
from .trial_calls import LENGTHS, WAYS, disagreement, run_alone, run_one_by_one, tried_calls

log = logging.getLogger("mlx_bulk")

GEAR_CAPPED: Callable[..., mx.array] = gear._softcap_attention  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]
MODELS = "mlx_lm.models."
CALLED = 6  # tokens of a call that nobody evaluates
SHARE = 0.25  # of a model's memory, which weights and packed weights may take together
WORK = 1e11  # parameters x tokens that a trial beyond a sliding window may take: about a second
functions_used: set[str] = set()  # kernels called by the functions below since it was cleared; no single network owns these functions


def _attention(queries: mx.array, keys: mx.array, values: mx.array, cache: Any, scale: float, mask: Any, sinks: Any = None) -> mx.array:
    def original() -> mx.array:
        return base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)

    if hasattr(cache, "bits") or not attention.suits(queries, keys, values, mask, sinks):
        return original()
    return run_kernel(functions_used, "attention", lambda: attention.on_cpu(queries, keys, values, scale, mask, sinks), original)


def _capped_attention(queries: mx.array, keys: mx.array, values: mx.array, scale: float, softcap: float, mask: Any) -> mx.array:
    def original() -> mx.array:
        return GEAR_CAPPED(queries, keys, values, scale, softcap, mask)

    if not attention.suits(queries, keys, values, mask):
        return original()
    return run_kernel(functions_used, "attention", lambda: attention.on_cpu(queries, keys, values, scale, mask, None, softcap), original)


def _elementwise(name: str, original: Callable[..., mx.array], fast: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(original)
    def chosen(*arrays: mx.array) -> mx.array:
        if native.suits(*arrays) and all(x.shape == arrays[0].shape for x in arrays):
            return run_kernel(functions_used, name, lambda: fast(*arrays), lambda: original(*arrays))
        return original(*arrays)

    return chosen


def _fast_nn() -> ModuleType:
    """Returns a copy of ``mlx.nn`` with our activations: model files call them as ``nn.silu``."""
    twin = ModuleType(nn.__name__, nn.__doc__)
    twin.__dict__.update(nn.__dict__)
    twin.__dict__["silu"] = _elementwise("silu", nn.silu, elementwise.silu_on_cpu)
    twin.__dict__["gelu"] = _elementwise("gelu", nn.gelu, elementwise.gelu_on_cpu)
    twin.__dict__["gelu_approx"] = _elementwise("gelu", nn.gelu_approx, elementwise.gelu_approx_on_cpu)
    return twin


_Pair = tuple[Any, Any]  # what a model file holds, and what it is to hold
_ON_CPU: list[_Pair] = [
    (base.scaled_dot_product_attention, _attention),
    (GEAR_CAPPED, _capped_attention),
    (mlx_activations.swiglu, _elementwise("swiglu", mlx_activations.swiglu, elementwise.swiglu_on_cpu)),
    (
        mlx_activations.precise_swiglu,
        _elementwise("swiglu", mlx_activations.precise_swiglu, lambda _, gate, x: elementwise.swiglu_on_cpu(gate, x)),
    ),
    (nn, _fast_nn()),
    (mlx_ssm.ssm_update, fast_state_space(functions_used)),
    (mlx_gated_delta.gated_delta_update, fast_gated_delta(functions_used)),
]
_ON_CUDA: list[_Pair] = [(base.scaled_dot_product_attention, attend_on_cuda)]
_BACK: list[_Pair] = [(ours, original) for original, ours in (*_ON_CPU, *_ON_CUDA)]


def substitute(network: Any, vocabulary: int, window: int | None, packs: bool = False) -> tuple[str, ...]:
    """Replaces what it can and tries the network before and after. Returns the names of the kernels in use.

    ``window``: the sliding window in tokens, or None; longer rows are tried where that is cheap. packs: layers hold weights packed too.
    Where a call crashes or logits differ, those of a batch from mlx-lm's batch and from its rows alone, the originals are put back and one
    warning says so. Quantized layers are not tried, and stay: with mlx's products a trial of a model of billions would take a quarter of
    an hour.
    """
    if device_name() == "cuda":
        _put(network, vocabulary)
        join_projections(network, lambda: run_alone(Network(network), [np.zeros(CALLED, np.int32)]))
        return ("attention", "joined projections") if has_joined(network) else ("attention",)
    if not linear.numpy_serves() and native.library() is None:
        return ()
    _put_back_but_quantized(network, vocabulary)
    lengths = [LENGTHS] if window is None or (window + 8) * get_total_parameters(network) > WORK else [LENGTHS, (window + 8, window - 1)]
    truth = [tried_calls(network, vocabulary, pair) for pair in lengths]
    _put(network, vocabulary, packs)
    context = context_of(network)
    for used in (context.used, functions_used):
        used.clear()
    results = [tried_calls(network, vocabulary, pair) for pair in lengths]
    names = context.used | functions_used
    reason = disagreement(truth, results)
    if reason is not None:  # mlx-lm's own batches are wrong for some models, where ours may be right
        _put_back_but_quantized(network, vocabulary)
        rows_alone = [tried_calls(network, vocabulary, pair, [run_alone, run_one_by_one]) for pair in lengths]
        _put(network, vocabulary, packs)
        if disagreement(rows_alone, results) is None:
            truth, reason = rows_alone, None
    if reason is None and "block" in names:
        with context_of(network).layer_by_layer():
            reason = disagreement([part[1:] for part in truth[:1]], [tried_calls(network, vocabulary, lengths[0], WAYS[1:])])
    if reason is None:
        return tuple(sorted(names | context_of(network).used | functions_used))
    _put_back_but_quantized(network, vocabulary)
    log.warning("mlx-lm's own layers stay in place, slower on this CPU: with ours, %s", reason)
    return ()


def packing_bytes(network: Any, memory: int, vocabulary: int, fits: Callable[[mx.array], bool] = linear.can_be_packed) -> int:
    """Returns the bytes of weights that a network's projections and head would hold packed; 0 where that has no use or no room.

    memory: the bytes that the model, its caches and its workspace may take. vocabulary: the width of its logits, 0 where it makes none.
    fits: whether a weight can be packed; by default its numbers are looked at.
    """
    if native.library() is None:
        return 0
    layers: dict[int, Any] = {id(layer): layer for layer in network.modules()}  # one layer may stand in several places
    weights = [layer.weight for layer in layers.values() if type(layer) in (nn.Linear, FastLinear, SwitchLinear, FastSwitchLinear)]
    if not any(weight.shape[-2] == vocabulary for weight in weights):  # then an embedding is the head too
        weights += [layer.weight for layer in layers.values() if isinstance(layer, nn.Embedding) and layer.weight.shape[0] == vocabulary]
    need = sum(size for weight in weights if (size := linear.bytes_packed(weight)) and fits(weight))
    arrays: list[Any] = list(tree_flatten(network.parameters()))
    return need if need + sum(array.nbytes for _, array in arrays) <= SHARE * memory else 0


def restore(network: Any, frees: bool = True) -> None:
    """Puts the originals back in the network's layers and in the model files that define them.

    frees: lets go of what the kernels hold of the weights, as packed copies.
    """
    _swap(_files(network), _BACK)
    separate_projections(network)
    unpatch_layers(network, frees)


def _put_back_but_quantized(network: Any, vocabulary: int) -> None:
    restore(network)
    patch_quantized_layers(network, vocabulary)
    context_of(network).packs = False


def _put(network: Any, vocabulary: int, packs: bool = False) -> None:
    if device_name() == "cuda":
        _swap(_files(network), _ON_CUDA)
        return
    _swap(_files(network), _ON_CPU)
    patch_layers(network, vocabulary)
    context_of(network).packs = packs


def only_inside(networks: Iterable[Any]) -> Callable[[], AbstractContextManager[None]]:
    """Takes the substitutes out of ``networks``. Returns a context manager that puts them back in for the length of a block.

    For a process that trains in between: its own network of the same model files needs gradients. Weights that are packed stay so between
    two blocks, while they are the same arrays. Projections that were joined stay apart from then on: weights come and go.
    """
    known = [(network, (context := context_of(network)).vocabulary, context.packs) for network in networks]

    def take_out() -> None:
        for network, _, packs in known:
            restore(network, frees=not packs)

    @contextmanager
    def inside() -> Generator[None]:
        for network, vocabulary, packs in known:
            _put(network, vocabulary, packs)
        try:
            yield
        finally:
            take_out()

    take_out()

    return inside


def _files(network: Any) -> list[ModuleType]:
    """Returns the model files of mlx-lm that define the network's layers.

    The file of activations is left out, though it may define a layer: all models share what it compiles, also models loaded later.
    """
    names = {cls.__module__ for _, layer in network.named_modules() for cls in type(layer).__mro__} - {mlx_activations.__name__}
    return [sys.modules[name] for name in sorted(names) if name.startswith(MODELS) and name in sys.modules]


def _swap(files: list[ModuleType], pairs: list[_Pair]) -> None:
    """Replaces the first of each pair by the second in the files, under whatever names they hold it."""
    for file in files:
        for name, value in list(vars(file).items()):
            for before, after in pairs:
                if value is before:
                    setattr(file, name, after)
