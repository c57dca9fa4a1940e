"""mlx-lm's decoder blocks as one CPU kernel call, which writes keys and values into the cache itself.

In a batch each row has memory of its own (``ragged_kv_cache``). The kernel writes to a plain cache's arrays only while the cache holds
exactly what the kernel left there. If someone has trimmed or copied the cache, the kernel copies it first, so that it never writes to
an array that someone else may hold. A layer's weights may change between calls. Its rotation, scales and epsilons are read once: to
change those, take our classes off first (``layer_patching``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any
from weakref import WeakKeyDictionary

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray

from ...kernels import attention, native
from ...kernels.blocks.decoder_block import Angles, Block, Constants, Fronts, Rooms, Weights
from ...kernels.quantized import QuantizedWeight
from ...kernels.quantized import suits as suits_quantized
from ..caches.cache_stand_ins import BothWays, PrefixView
from ..caches.ragged_kv_cache import RaggedKVCache
from .block_layouts import DECODER_BLOCKS, divided, layout_of, norm_constants, packings, parts_of
from .call_context import BUILT, CallContext, context_of
from .cpu_layers import run_kernel
from .rope_layers import FREQUENCIES, FastRoPE, FastSectionedRope, Turning

CACHES = (NoneType, KVCache, PrefixView, RaggedKVCache)  # that the kernel can serve

Lengths = NDArray[np.int64] | None  # tokens of each row in a call; pads follow
Turns = tuple[NDArray[np.int64], Angles | None] | None  # a call's first positions, and angles if its rows hold pictures; None: by caches


@dataclass(slots=True)
class WrittenCache:
    """A plain cache's contents as the kernel left them."""

    of: native.Places  # of its keys and values [B, K, S, D]
    used: int
    rooms: Rooms


@dataclass(slots=True)
class BuiltBlock:
    """A layer's block for the kernel, None where the kernel can't serve it.

    ``of``: the weights that it was built of; ``written``: the plain caches that it has written to.
    """

    of: native.Places
    block: Block | None
    written: WeakKeyDictionary[KVCache, WrittenCache] = field(default_factory=WeakKeyDictionary[KVCache, WrittenCache])

    def __deepcopy__(self, memo: Any) -> None:
        """Returns None: a copied layer builds its own block, as this one points to the first layer's memory."""


def block_of(layer: Any) -> Block | None:
    """Returns the kernel's block for a layer with its present weights; None where the kernel can't serve it. Raises Traced."""
    parts = parts_of(layer)
    if parts is None:
        return None
    built: BuiltBlock | None = layer.__dict__.get(BUILT)
    arrays = _arrays(parts)
    if built is None or not built.of.hold(arrays):
        if not all(suits_quantized(each) if isinstance(each, QuantizedWeight) else native.suits(each) for each in parts.values()):
            return None
        built = BuiltBlock(native.Places(arrays), _build(layer, parts))
        object.__setattr__(layer, BUILT, built)  # not among the layer's parameters
    return built.block


def _arrays(parts: dict[str, Any]) -> list[mx.array]:
    return [array for part in parts.values() for array in (part.arrays if isinstance(part, QuantizedWeight) else (part,))]


def _written(layer: Any) -> WeakKeyDictionary[KVCache, WrittenCache]:
    """Returns the plain caches that a layer's block has written to."""
    return layer.__dict__[BUILT].written


def _build(layer: Any, parts: dict[str, Any]) -> Block | None:
    """Builds the kernel's block of a layer; None where it does not take the layer's shapes or rotation."""
    attn, layout = layer["self_attn"], layout_of(layer)
    heads, kv = layout.counts(layer)
    weights = divided(parts, heads, kv)
    width = weights["q"].shape[0] // heads
    turning = _turning(attn["rope"])
    if not _fit(weights, heads, kv, layout.wide_norms) or turning is None or 2 * turning.frequencies.size > width:
        return None
    constants = Constants(
        width=width,
        scale=attn.scale,
        position_scale=turning.scale,
        neighbours=turning.neighbours,
        magnitude=turning.magnitude,
        **layout.constants(layer),
        **norm_constants(layer),
    )
    return Block(Weights(**weights, frequencies=turning.frequencies), constants, packings(layer, parts))


def _fit(weights: dict[str, Any], heads: int, kv: int, wide_norms: bool) -> bool:
    """Returns True when all weights have shapes that fit together."""
    (inner, d), hidden = weights["q"].shape, weights["gate"].shape[0] if "gate" in weights else 0
    width = inner // heads
    inner_kv = kv * width
    shapes = {
        **dict.fromkeys(("norm", "post_norm", "second_norm", "second_post_norm"), (d,)),
        "q": (heads * width, d),
        "k": (inner_kv, d),
        "v": (inner_kv, d),
        "o": (d, inner),
        "gate": (hidden, d),
        "up": (hidden, d),
        "down": (d, hidden),
        "q_norm": (inner if wide_norms else width,),
        "k_norm": (inner_kv if wide_norms else width,),
    }
    shapes |= {f"{name}_bias": shape[:1] for name, shape in shapes.items() if len(shape) == 2}
    return all(weight.shape == shapes[name] for name, weight in weights.items())


def _turning(rope: Any) -> Turning | None:
    """Returns how a block's layer rotates; None where the kernel can't turn so."""
    served = type(rope) in (FastRoPE, FastSectionedRope, *FREQUENCIES.values())
    return rope.turning() if served and getattr(rope, "dims", getattr(rope, "dim", 1)) % 2 == 0 else None


def _suits(block: Block, x: mx.array, mask: attention.Mask, cache: KVCache | PrefixView | None) -> bool:
    """Returns True when the kernel takes a call's shapes. Those that do not fit are left to mlx, which raises its own error."""
    b, t, d = x.shape
    if d != block.d or not attention.fits(mask, (b, block.heads, t, t if cache is None else cache.offset + t)):
        return False
    held, rows = (cache.base, 1) if isinstance(cache, PrefixView) else (cache, b)
    if held is None or held.keys is None or held.values is None:
        return held is None or (held is cache and held.offset == 0)
    shapes = {(*array.shape[:2], array.shape[3]) for array in (held.keys, held.values)}
    return shapes == {(rows, block.kv, block.width)} and native.suits(held.keys, held.values)


def _hold(cache: KVCache, held: WrittenCache | None, block: Block, rows: int, t: int) -> WrittenCache:
    """Returns a plain cache with room for t positions more; ``held``: how the kernel left it, if it has written to it. Raises Traced."""
    if held is not None and cache.keys is not None and cache.values is not None:
        left = cache.offset == held.used and held.of.hold([cache.keys, cache.values])
        if left and held.used + t <= cache.keys.shape[2]:
            return held
    size = -(-(cache.offset + t) // cache.step) * cache.step
    keys, values = (_room((rows, block.kv, size, block.width), array, cache.offset, t) for array in (cache.keys, cache.values))
    cache.keys, cache.values = keys, values
    row = 4 * block.kv * size * block.width * np.arange(rows)
    at = [row + native.view(array).ctypes.data for array in (keys, values)]
    return WrittenCache(native.Places([keys, values]), cache.offset, Rooms(at[0], at[1], np.full(rows, size), np.full(rows, cache.offset)))


def _room(shape: tuple[int, ...], held: mx.array | None, used: int, coming: int) -> mx.array:
    """Makes an array with the first ``used`` positions of ``held``, and zeros after the ``coming`` ones. Raises Traced."""
    made = native.empty(shape)
    view = native.view(made)
    if held is not None:
        native.evaluate_arrays(held)
        view[:, :, :used] = native.view(held)[:, :, :used]
    view[:, :, used + coming :] = 0
    return made


def _turns(layer: Any, context: CallContext) -> Turns:
    rope, positions = layer["self_attn"]["rope"], context.positions
    if positions is None or type(rope) is not FastSectionedRope:
        return None
    if positions.sections is not None:
        return positions.starts, rope.tables(positions)
    return (positions.starts[:1] if isinstance(positions.offset, int) else positions.starts), None  # one start's angles serve all rows


def _run_plain(
    block: Block,
    x: mx.array,
    mask: attention.Mask,
    cache: KVCache,
    written: WeakKeyDictionary[KVCache, WrittenCache],
    lengths: Lengths,
    turns: Turns,
) -> mx.array:
    native.evaluate_arrays(x, *([mask] if isinstance(mask, mx.array) else []))
    held = _hold(cache, written.get(cache), block, *x.shape[:2])
    starts, angles = turns or (held.rooms.used[:1], None)
    out = block(x, held.rooms, starts, mask, lengths, angles)
    held.used += x.shape[1]
    held.rooms.used += x.shape[1]
    cache.offset = held.used
    written[cache] = held
    return out


def _run_unkept(block: Block, x: mx.array, mask: attention.Mask, cache: PrefixView | None, lengths: Lengths, turns: Turns) -> mx.array:
    """Runs a call whose keys and values are not kept, on top of nothing or of a prefix that all its rows share."""
    native.evaluate_arrays(x, *([mask] if isinstance(mask, mx.array) else []))
    b, t, _ = x.shape
    room = np.empty((2, b, block.kv * t * block.width), np.float32)  # keys and values of this call alone
    at = room.ctypes.data + room.strides[1] * np.arange(2 * b, dtype=np.int64).reshape(2, b)
    fronts = None
    if cache is not None and cache.base.keys is not None and cache.base.values is not None:
        held = [native.view(native.dense(array)) for array in (cache.base.keys, cache.base.values)]
        of_all = (held[0].ctypes.data, held[1].ctypes.data, held[0].shape[2], cache.offset)
        fronts = Fronts(*(np.full(b, n, np.int64) for n in of_all))
    starts, angles = turns or (np.array([0 if cache is None else cache.offset], np.int64), None)
    return block(x, Rooms(at[0], at[1], np.full(b, t, np.int64), np.zeros(b, np.int64), fronts), starts, mask, lengths, angles)


def _run_rows(block: Block, x: mx.array, cache: RaggedKVCache, turns: Turns) -> mx.array:
    """Runs a call on a cache whose rows have their own lengths: each position sees its own row up to itself. Pads come last."""
    native.evaluate_arrays(x)
    t = x.shape[1]
    starts, angles = turns or (cache.lengths, None)
    out = block(x, cache.rooms(t, block.kv, block.width), starts, None if t == 1 else "causal", cache.real(t), angles)
    cache.advance(t)
    return out


def _fast(original: Any) -> Any:
    """Makes a class of blocks that run as one kernel call."""

    class FastBlock(original):
        """A decoder block that computes its output when it is called."""

        _context: CallContext

        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            """x [B, T, d] -> the same shape."""

            def slow() -> mx.array:
                return super(FastBlock, self).__call__(x, mask, cache)

            context, held = self._context, None if type(cache) is BothWays else cache  # that one keeps nothing, and the mask says all
            if not context.whole_blocks or self.training or type(held) not in CACHES or x.ndim != 3 or not native.suits(x):
                return slow()
            try:
                block = block_of(self)
            except native.Traced:
                return slow()
            if block is None:
                return slow()
            turns, lengths, finished = _turns(self, context), context.lengths, layout_of(self).finished

            def run(made: Callable[[], mx.array]) -> mx.array:
                out = run_kernel(context.used, "block", made, lambda: None)
                return slow() if out is None else finished(self, out)

            if type(held) is RaggedKVCache:
                return run(lambda: _run_rows(block, x, held, turns))
            if not _suits(block, x, mask, held):
                return slow()
            if type(held) is KVCache:
                return run(lambda: _run_plain(block, x, mask, held, _written(self), lengths, turns))
            return run(lambda: _run_unkept(block, x, mask, held, lengths, turns))

    return FastBlock


BLOCKS: dict[type, type] = {original: _fast(original) for original in DECODER_BLOCKS}


def serves(layer: Any) -> bool:
    """Returns True when the kernel serves a layer's calls, so that its batches can use a ragged cache."""
    return (
        isinstance(layer, tuple(BLOCKS.values())) and context_of(layer).whole_blocks and not layer.training and block_of(layer) is not None
    )


def row_cache(caches: Sequence[KVCache]) -> RaggedKVCache:
    """Copies plain caches of one row each into one ragged cache. At least one of them is not empty."""
    views: list[list[NDArray[np.float32]]] = []
    for cache in caches:
        arrays = [array for array in (cache.keys, cache.values) if array is not None]
        native.evaluate_arrays(*arrays)
        views.append([native.view(array)[0, :, : cache.offset] for array in arrays])
    heads, _, width = next(pair[0].shape for pair in views if pair)
    nothing = np.zeros((heads, 0, width), np.float32)
    return RaggedKVCache.of([(pair[0], pair[1]) if pair else (nothing, nothing) for pair in views])
