"""Projections of the same input as one product, for CUDA.

mlx 0.32 asks cuBLAS for the best way to compute a product each time that it sends one. With few rows this takes longer than the product:
most of a step of 64 rows on an H200. A decoder block has seven of them. The projections to queries, keys and values read the same input,
and so do those of a gated MLP. Of such a group the first one called computes all, and the others take their part. No model file is
changed: a part is taken by whoever calls with the same array. Calls of many tokens, whose products take longer than sending them, stay
apart: parts lie with gaps between their rows, and what reads them may copy them first.

The weights of a group lie one behind the other, and each projection's own weight is a view of them. They are not to change: where adapters
or newer weights are put on a network, or a caller trains in between, its projections are separated first. A projection whose weight is
another object by now computes its own product.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import accumulate
from operator import is_
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa"))
JOINED = "_joined"  # where a projection keeps its group and its place there: not among its parameters
ROW_ARRAYS = ("weight", "scales", "biases", "bias")  # an output each, in their first axis
SETTINGS = ("bits", "group_size", "mode")
MOST_TOKENS = 1024  # of a call, for which sending products takes longer than computing them
ALIGNED = 16  # bytes, to which CUDA's products want their arrays to be aligned


Times = Callable[[mx.array, dict[str, mx.array]], mx.array]  # an input and the arrays of a projection, or of a group -> the product


class ProjectionGroup:
    """Projections that read the same input, and their arrays one behind the other."""

    taken: bool = False  # whether all parts of the last product were taken

    def __init__(self, members: Sequence[nn.Module]):
        names = [name for name in ROW_ARRAYS if name in members[0]]
        self._ends = list(accumulate(member["weight"].shape[0] for member in members))[:-1]
        self._arrays = {name: mx.concatenate([member[name] for member in members]) for name in names}
        views = {name: mx.split(array, self._ends) for name, array in self._arrays.items()}
        mx.eval(self._arrays, views)
        self._views = [{name: views[name][place] for name in names} for place in range(len(members))]
        for place, (member, own) in enumerate(zip(members, self._views, strict=True)):
            for name, view in own.items():
                member[name] = view
            object.__setattr__(member, JOINED, (self, place))
        self._parts: tuple[mx.array, dict[int, mx.array]] | None = None  # an input, and what is left of its product

    def __deepcopy__(self, memo: Any) -> None:
        """Returns None: a copied projection is alone."""

    def part(self, place: int, layer: nn.Module, x: mx.array, times: Times) -> mx.array | None:
        """Returns a projection's part of x's product; None where it computes its own."""
        if x.size > MOST_TOKENS * x.shape[-1] or not all(map(is_, self._views[place].values(), map(layer.get, self._arrays))):
            return None
        held = self._parts
        if held is None or held[0] is not x or place not in held[1]:
            product = times(x, self._arrays)
            self._parts = held = x, dict(enumerate(mx.split(product, self._ends, axis=-1)))
        part = held[1].pop(place)
        self.taken = not held[1]
        if self.taken:
            self._parts = None
        return part


def _class(original: Any, times: Callable[[Any, mx.array, dict[str, mx.array]], mx.array]) -> Any:
    """Makes a class of projections that may be one of a group. ``times`` multiplies by a layer's arrays, or a group's."""

    class Joined(original):
        """A projection that computes its group's product, or takes its part of it."""

        def __call__(self, x: mx.array) -> mx.array:
            """x [..., K] -> [..., N]."""
            group, place = self.__dict__.get(JOINED) or (None, 0)
            part = None if group is None or self.training else group.part(place, self, x, lambda *given: times(self, *given))
            return super().__call__(x) if part is None else part

    return Joined


def _times(_: Any, x: mx.array, arrays: dict[str, mx.array]) -> mx.array:
    bias = arrays.get("bias")
    return x @ arrays["weight"].T if bias is None else mx.addmm(bias, x, arrays["weight"].T)


def _times_quantized(layer: Any, x: mx.array, arrays: dict[str, mx.array]) -> mx.array:
    settings = {name: getattr(layer, name) for name in SETTINGS}
    product = mx.quantized_matmul(x, arrays["weight"], scales=arrays["scales"], biases=arrays.get("biases"), transpose=True, **settings)
    return product + arrays["bias"] if "bias" in arrays else product


JOINED_CLASSES: dict[type, type] = {nn.Linear: _class(nn.Linear, _times), nn.QuantizedLinear: _class(nn.QuantizedLinear, _times_quantized)}


def join_projections(network: nn.Module, call: Callable[[], Any]) -> None:
    """Joins the projections of a network that are called with one input.

    ``call`` calls the network, as often as it likes, and need not evaluate anything. A group of which it does not take all parts is given
    up.
    """
    groups = [ProjectionGroup(members) for members in _found(network)]
    for layer in {id(layer): layer for layer in network.modules() if _group(layer) is not None}.values():  # one may stand in several places
        layer.__class__ = JOINED_CLASSES[type(layer)]
        layer.eval()
    mx.clear_cache()  # of the arrays that stood apart
    try:
        call()
    except Exception:  # a model file may fail in any way
        separate_projections(network)
        return
    separate_projections(network, [group for group in groups if not group.taken])


def has_joined(network: nn.Module) -> bool:
    """Returns True when some projections of a network are joined."""
    return any(_group(layer) is not None for layer in network.modules())


def _group(layer: nn.Module) -> "ProjectionGroup | None":
    """Returns the group of a projection; None for other layers, and for a copy, which is alone."""
    return layer.__dict__.get(JOINED, (None,))[0]


def joining_key() -> str:
    """Names all that decides which products are joined, and so the bits of a network on CUDA."""
    return sha256(Path(__file__).read_bytes()).hexdigest()[:16]


def separate_projections(network: nn.Module, groups: Sequence[ProjectionGroup] | None = None) -> None:
    """Makes projections products of their own again: those of ``groups``, or all."""
    originals = {joined: original for original, joined in JOINED_CLASSES.items()}
    for layer in network.modules():
        held = layer.__dict__.get(JOINED)
        if groups is None or (held is not None and held[0] in groups):
            layer.__dict__.pop(JOINED, None)
            layer.__class__ = originals.get(type(layer), type(layer))


def _found(network: nn.Module) -> list[list[nn.Module]]:
    found: list[list[nn.Module]] = []
    seen = set[int]()
    for parent in network.modules():
        for names in GROUPS:
            members = [child for name in names if (child := parent.get(name)) is not None]
            if len(members) == len(names) and _join(members) and seen.isdisjoint(map(id, members)):
                found.append(members)
                seen.update(map(id, members))  # one layer may stand in several places
    return found


def _join(members: Sequence[Any]) -> bool:
    """Returns True when the arrays of these can lie one behind the other, and be read there."""
    if len({id(member) for member in members}) < len(members) or any(type(member) not in JOINED_CLASSES for member in members):
        return False
    if any(member[name].nbytes % ALIGNED for member in members for name in ROW_ARRAYS if name in member):
        return False
    kinds = {(type(member), *(getattr(member, name, None) for name in SETTINGS), *_kinds(member)) for member in members}
    return len(kinds) == 1


def _kinds(member: nn.Module) -> list[Any]:
    """Returns the names of a projection's arrays, their types, and their shapes but for the outputs."""
    return [(name, member[name].dtype, member[name].shape[1:]) for name in ROW_ARRAYS if name in member]
