"""All decoder blocks of a network, and its final norm, as one CPU kernel call, for steps of a batch whose caches have memory of their own.

mlx-lm's body calls one block after the other. Each call finds little of Python's data in the processor's cache, as the weights of the block
before have passed through it. Calls that the kernel cannot serve go to mlx-lm's body, whose blocks are kernel calls of their own
(``cpu_blocks``). Between calls layers, their parts, classes and weights may change, as for ``cpu_blocks``. A norm's epsilon is read once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import mlx.core as mx
from mlx_lm.models import (
    ernie4_5,
    gemma,
    gemma2,
    glm4,
    granite,
    helium,
    internlm3,
    llama,
    mimo,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
)

from ...kernels import native
from ...kernels.blocks.decoder_block import Block
from ...kernels.blocks.decoder_stack import FinalNorm, Stack
from ..caches.ragged_kv_cache import RaggedKVCache
from .block_layouts import HEAD_NORMS, layout_of
from .call_context import BUILT, CallContext
from .cpu_blocks import BLOCKS, block_of
from .cpu_layers import NORM_CLASSES, run_kernel
from .deepstack import FAST_STACKED

Factor = Callable[[Any], float]  # of a body: by what it multiplies embeddings
DECODER_BODIES: dict[type, Factor | None] = {
    llama.LlamaModel: None,
    qwen2.Qwen2Model: None,
    qwen3.Qwen3Model: None,
    ernie4_5.Ernie45Model: None,
    glm4.Glm4Model: None,
    helium.HeliumModel: None,
    internlm3.InternLM3Model: None,
    mimo.MiMoModel: None,
    olmo2.LlamaModel: None,
    phi3.Phi3Model: None,
    seed_oss.SeedModel: None,
    granite.GraniteModel: lambda body: body.embedding_multiplier,
    gemma.GemmaModel: lambda body: body.args.hidden_size**0.5,
    gemma2.GemmaModel: lambda body: body.args.hidden_size**0.5,
}
ARRAYS = ("weight", "bias", "scales", "biases")
NORM = "norm"  # where a body keeps the norm behind its blocks
_FAST_BLOCKS = {*BLOCKS.values(), *FAST_STACKED.values()}  # a class made of one of them may do more in its call


class _Watched:
    """What a body's blocks and its norm were built of: modules, their classes, and arrays, each with its place in the module above it."""

    def __init__(self, layers: Sequence[Any], norm: Any):
        """norm: None where it is not served. Raises Traced."""
        self._layers, self._norm = list(layers), norm  # not the body: it holds what was built of it, and would never be freed
        self._holders, self._names = list[Any](), list[str]()
        parts, modules = [norm], list[Any]()
        for layer in layers:
            layout = layout_of(layer)
            places = [*layout.projections.values(), *HEAD_NORMS.values()]
            above = {parent: self._note(layer, parent) for parent in dict.fromkeys(parent for parent, _ in places)}
            parts += [self._note(layer, name) for name in layout.norms.values()]
            parts += [self._note(above[parent], name) for parent, name in places]
            modules += [each for each in above.values() if each is not None]
        found = [part for part in parts if part is not None]
        arrays = [array for part in found for name in ARRAYS if (array := self._note(part, name)) is not None]
        self._entries = native.Entries(self._holders, self._names, [*layers, *modules, *found])
        self._places = native.Places(arrays)

    def _note(self, module: Any, name: str) -> Any:
        self._holders.append(module)
        self._names.append(name)
        return dict.get(module, name)

    def stand(self, body: Any) -> bool:
        """Returns True when a body's layers and norm are these, and all in them is as it was. Modules are dicts."""
        layers = body.layers
        same = len(layers) == len(self._layers) and all(map(is_, layers, self._layers)) and (self._norm is None or self._norm is body[NORM])
        return same and self._entries.stand() and self._places.stand()


@dataclass(slots=True)
class BuiltBody:
    """A body's blocks, its norm if the kernel can serve it, and the stack of the batch that was called last."""

    of: _Watched
    blocks: list[Block]
    norm: FinalNorm | None
    stack: Stack | None = None

    def __deepcopy__(self, memo: Any) -> None:
        """Returns None: a copied body builds its own."""

    def __call__(self, x: mx.array, caches: list[RaggedKVCache]) -> mx.array:
        """Returns the last block's output [B, T, d] of x, after ``norm``. Raises Traced before anything is written."""
        rooms, stack = [cache.placed for cache in caches], self.stack  # another thread may keep its own there at any time
        if stack is not None and len(rooms) == len(stack.rooms) and all(map(is_, rooms, stack.rooms)):
            out = stack(x)
            if out is not None:
                return out
        t = x.shape[1]
        placed = [cache.rooms(t, block.kv, block.width) for cache, block in zip(caches, self.blocks, strict=True)]
        self.stack = stack = Stack(self.blocks, placed, [cache.lengths for cache in caches], self.norm)
        out = stack(x)
        assert out is not None, "a row without room"
        return out


def _built(body: Any, x: mx.array) -> BuiltBody | None:
    """Returns a body's blocks with their present weights; None where the kernel can't serve one of them, or x."""
    if x.ndim != 3 or not native.suits(x):
        return None
    built: BuiltBody | None = body.__dict__.get(BUILT)
    if built is None:
        try:
            blocks = [block_of(layer) if type(layer) in _FAST_BLOCKS else None for layer in body.layers]
            found = [block for block in blocks if block is not None]
            if len(found) < len(blocks):
                return None
            norm = _served_norm(body[NORM], x.shape[2])
            built = BuiltBody(_Watched(body.layers, None if norm is None else body[NORM]), found, norm)
        except native.Traced:
            return None
        object.__setattr__(body, BUILT, built)  # not among the body's parameters
    return built if x.shape[2] == built.blocks[0].d else None


def _served_norm(norm: Any, width: int) -> FinalNorm | None:
    """Returns a norm of ``width`` numbers for the kernel; None where it can't serve it."""
    weight, more = norm.get("weight"), NORM_CLASSES.get(type(norm))
    return None if more is None or not native.suits(weight) or weight.shape != (width,) else FinalNorm(weight, norm.eps, more)


def _drop_old(body: Any) -> None:
    """Lets go of what was built of weights that the body has no more: nothing else would, where its next caches are mlx-lm's."""
    built: BuiltBody | None = body.__dict__.get(BUILT)
    if built is not None and not built.of.stand(body):
        body.__dict__.pop(BUILT, None)


def _steps(body: Any, cache: Any) -> bool:
    """Returns True for a call of a batch without pads and pictures, on caches with memory of their own."""
    context: CallContext = body._context
    plain = context.whole_blocks and context.pictures is None and context.positions is None
    whole = plain and getattr(body, "pipeline_size", 1) == 1 and not any(layer.training for layer in (body, *body.layers))
    return whole and bool(cache) and len(cache) == len(body.layers) and all(_is_placed(each) for each in cache)


def _is_placed(cache: Any) -> bool:
    return type(cache) is RaggedKVCache and not cache.pads_come


def _fast(original: Any, factor: Factor | None) -> Any:
    """Makes a class of bodies whose blocks are one kernel call."""

    class FastBody(original):
        """A body of embedding, decoder blocks and norm."""

        _context: CallContext

        def __call__(self, inputs: Any, cache: Any = None, input_embeddings: mx.array | None = None) -> mx.array:
            """Token ids [B, T], or their embeddings [B, T, d] where the body takes them -> hidden states [B, T, d]."""
            _drop_old(self)
            given = () if input_embeddings is None else (input_embeddings,)
            if not _steps(self, cache):
                return super().__call__(inputs, cache, *given)
            x = input_embeddings
            if x is None:
                x = self.embed_tokens(inputs) if factor is None else self.embed_tokens(inputs) * factor(self)
            built = _built(self, x)
            made = None if built is None else run_kernel(self._context.used, "block", lambda: built(x, cache), lambda: None)
            if built is None or made is None:
                return super().__call__(inputs, cache, *given)
            if built.norm is None:
                return self.norm(made)
            self._context.used.add("norm")
            return made

    return FastBody


BODIES: dict[type, type] = {original: _fast(original, factor) for original, factor in DECODER_BODIES.items()}
