"""KV caches of a batch, built on mlx-lm's: makes, forks, joins and filters them.

A batch is either *padded* or *exact*. Padded: mlx-lm's batch caches, for rows of different lengths; new rows can join. Exact: the
model's plain caches with B rows of one length; rows can leave or fork, none can join.

    padded   . . a b c d     exact   a b c
             e f g h i j             d e f       columns are cache positions, dots are pads
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, cast

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import ArraysCache, BatchKVCache, KVCache, RotatingKVCache, make_prompt_cache

from ...kernels import native
from ...kernels.backend import device_name, on_cpu_path
from ..caches.cache_stand_ins import PrefixView
from ..caches.padded_kv_cache import tell_first_keys
from ..caches.ragged_kv_cache import STEP, RaggedKVCache
from ..caches.row_positions import RowPositions
from ..core.kv_quantization import KVQuantization
from ..patched_layers.block_layouts import has_kernel
from ..patched_layers.cpu_blocks import row_cache, serves
from ..patched_layers.rope_layers import has_positions
from ..quantized_kv.quantized_attention import install
from ..quantized_kv.quantized_caches import BatchQuantizedKVCache, PlainQuantizedKVCache


class Cache(Protocol):
    """The methods of mlx-lm's batch caches that are used here."""

    state: Any

    def prepare(self, *, lengths: list[int], right_padding: list[int]) -> None:
        """Starts calls whose rows hold ``lengths`` tokens, followed by pads."""
        ...

    def finalize(self) -> None:
        """Moves the pads written since ``prepare`` to the left."""
        ...

    def filter(self, batch_indices: mx.array) -> None:
        """Keeps the rows named, in that order."""
        ...

    def extend(self, other: Any) -> None:
        """Appends the rows of another cache."""
        ...


Caches = list[Cache]


def make_caches(model: Any, rows: int, padded: bool, kv: KVQuantization | None = None) -> Caches:
    """Makes empty caches for ``rows`` rows, one per layer. Raises AttributeError where a layer's cache cannot be padded.

    kv: how they quantize keys and values. Caches of sliding windows and recurrent states stay as they are. A network that turns by
    sections has the rows' positions as the last of them.
    """
    positions = cast(Caches, [RowPositions(rows)] if has_positions(model) else [])
    return _layer_caches(model, rows, padded, kv) + positions


def _layer_caches(model: Any, rows: int, padded: bool, kv: KVQuantization | None) -> Caches:
    plain = make_prompt_cache(model)
    if kv is not None:
        install()
        plain = [_quantizing(cache, kv) for cache in plain]
    if not padded:
        return cast(Caches, plain)
    if _ragged(model, plain):
        return [RaggedKVCache(rows) for _ in plain]
    return _made_ours([type(layer).merge([layer] * rows) for layer in plain])


def _quantizing(cache: Any, kv: KVQuantization) -> Any:
    """Returns the empty cache as one that quantizes, where it holds keys and values of all tokens."""
    if hasattr(cache, "caches"):
        cache.caches = tuple(_quantizing(inner, kv) for inner in cache.caches)
        return cache
    return PlainQuantizedKVCache(kv) if type(cache) is KVCache else cache


def read_only_views(base: Caches | None) -> Caches | None:
    """Returns cache arguments for a call whose keys and values are not kept: None, or views of ``base``, a cache of one row."""
    if base is None:
        return None
    return cast(Caches, [copy.deepcopy(one) if isinstance(one, RowPositions) else PrefixView(one) for one in cast(list[Any], base)])


def needs_no_caches(model: Any, on_top: bool = True) -> bool:
    """Returns True when a call that keeps no keys and values needs no caches: the CPU kernel serves every layer, for any number of tokens.

    on_top: of a cache of one row. On top of nothing layers may have windows: their masks say all. A GPU needs caches on top of one alone.
    """
    if not on_cpu_path():
        return not on_top and all(type(cache) is KVCache for cache in make_prompt_cache(model))
    return _ragged(model, make_prompt_cache(model), (KVCache,) if on_top else (KVCache, RotatingKVCache))


def leaves_pads_out(model: Any) -> bool:
    """Returns True where pads behind a row are not computed: all layers, also of an outline, are blocks of which there is a kernel.

    Without quantized keys and values: of these the kernel reads none.
    """
    whole = native.library() is not None and all(map(has_kernel, getattr(model, "layers", [None])))
    return whole and all(type(cache) is KVCache for cache in make_prompt_cache(model))


def _ragged(model: Any, plain: list[Any], kinds: tuple[type, ...] = (KVCache,)) -> bool:
    """Returns True when a batch can use ragged caches: the CPU kernel serves every layer."""
    layers: Sequence[Any] = getattr(model, "layers", ())
    return len(layers) == len(plain) and all(type(cache) in kinds for cache in plain) and all(map(serves, layers))


def _made_ours(caches: Caches) -> Caches:
    """Returns mlx-lm's padded caches as this device needs them.

    On the CPU they grow in smaller steps than mlx-lm's 256, most of which would be zeros to write and copy. On CUDA they tell our
    attention where rows begin.
    """
    device = device_name()
    for cache in kept_inside(caches):
        if type(cache) in (BatchKVCache, BatchQuantizedKVCache) and device == "cpu":
            cache.step = STEP
        if device == "cuda":
            tell_first_keys(cache)
    return caches


def prepare_padding(caches: Caches, lengths: list[int], width: int) -> None:
    """Tells the caches that in the next ``width`` columns each row has ``lengths`` tokens, followed by pads."""
    if min(lengths) == width:
        return
    for cache in caches:
        cache.prepare(lengths=lengths, right_padding=[width - n for n in lengths])


def set_call_lengths(caches: Caches, lengths: list[int], width: int) -> None:
    """Tells caches of recurrent states where rows end in a call of ``width`` columns. ``lengths``: tokens left, or less than none.

    A state is taken where its row ends. mlx-lm looks for that end in every call, also in one before it (``ssm_attn`` then reads too far).
    """
    for cache in kept_inside(caches):
        if isinstance(cache, ArraysCache) and cache.lengths is not None:
            cache.lengths = mx.array([min(n, width) for n in lengths])


def finish_padding(caches: Caches) -> None:
    """Ends the padded calls: pads move to the left. A cache that no layer fills stays as it is."""
    for cache in kept_inside(caches):
        if isinstance(cache, ArraysCache) or not cache.empty():
            cache.finalize()


def kept_inside(caches: Caches) -> Iterator[Any]:
    """Yields the caches, and for lists of caches (mlx-lm's CacheList) those in the list."""
    cache: Any
    for cache in caches:
        if hasattr(cache, "caches"):
            yield from kept_inside(list(cache.caches))
        else:
            yield cache


def join_caches(parts: list[Caches]) -> Caches:
    """Appends the rows of all padded caches to the first ones, and returns these."""
    for mine, *others in zip(*parts, strict=True):
        for other in others:
            mine.extend(other)
    return parts[0]


def merge_caches(model: Any, rows: list[Caches]) -> Caches:
    """Makes padded caches from copies of plain caches of one row each, of any lengths."""
    layers: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    if _ragged(model, [cache for cache in rows[0] if not isinstance(cache, RowPositions)]):
        return [type(own[0]).merge(own) if isinstance(own[0], RowPositions) else row_cache(own) for own in layers]
    return _made_ours([type(own[0]).merge(list(own)) for own in layers])


def select(caches: Caches, rows: list[int], of: int, padded: bool) -> None:
    """Keeps ``rows`` of the ``of`` rows, in place and in that order. An index named twice forks its row."""
    if rows == list(range(of)):
        return
    index = mx.array(rows)
    for cache in caches:
        if padded:
            cache.filter(index)
        else:
            _select_plain(cache, index, of)


def _select_plain(cache: Any, index: mx.array, of: int) -> None:
    if isinstance(cache, RowPositions):
        cache.filter(index)
        return

    def pick(leaf: Any) -> Any:
        return leaf[index] if isinstance(leaf, mx.array) and leaf.ndim and leaf.shape[0] == of else leaf

    _change(cache, pick)


def _change(cache: Any, change: Callable[[Any], Any]) -> None:
    """Replaces each leaf of a plain cache by ``change`` of it."""
    for name, value in vars(cache).items():
        if name == "caches":  # a list of caches (mlx-lm's CacheList)
            for inner in value:
                _change(inner, change)
        else:
            setattr(cache, name, tree_map(change, value))


def fork_caches(caches: Caches, rows: list[int], of: int, padded: bool) -> Caches:
    """Makes new caches with ``rows`` of ``caches``, which stay as they are."""
    twins = copy.deepcopy(caches)  # mlx arrays are changed in place by -= and by slices: sharing them would tie the two
    select(twins, rows, of, padded)
    return twins


def widen_caches(caches: Caches, rows: int) -> Caches:
    """Makes plain caches that hold the one row of ``caches`` ``rows`` times."""

    def repeat(leaf: Any) -> Any:
        return mx.broadcast_to(leaf, (rows, *leaf.shape[1:])) if isinstance(leaf, mx.array) and leaf.ndim and leaf.shape[0] == 1 else leaf

    twins = copy.deepcopy(caches)
    for cache in cast(list[Any], twins):
        if isinstance(cache, RowPositions):
            cache.repeat(rows)
        else:
            _change(cache, repeat)
    return twins


def trimmable(caches: Caches, tokens: int) -> bool:
    """Returns True when plain caches can take in so many tokens more and give them back, without forgetting any for them."""
    return all(
        type(cache) in (KVCache, RowPositions) or (type(cache) is RotatingKVCache and cache.offset + tokens < cache.max_size)
        for cache in cast(list[Any], caches)
    )


def trim(caches: Caches, tokens: int) -> None:
    """Drops the newest ``tokens`` of each row from ``trimmable`` plain caches."""
    for cache in cast(list[KVCache | RotatingKVCache | RowPositions], caches):
        cache.trim(tokens)


def evaluate_caches(caches: Caches) -> None:
    """Computes the lazy arrays of the caches."""
    mx.eval(_arrays(caches))


def send_caches(caches: Caches) -> mx.array:
    """Has the device compute the lazy arrays of the caches, and does not wait. Returns an array that is there when they are.

    Who waits for that one holds none of the caches' own arrays, which mlx would then copy to write into them.
    """
    arrays = _arrays(caches)
    end = mx.depends([mx.zeros(())], arrays)[0]
    mx.async_eval(arrays, end)
    return end


def midway_array(caches: Caches) -> mx.array | None:
    """Returns one array of the last cache that holds any, its values: with it all layers before are computed. None where none holds any.

    Keys would be turned by their positions first, which is many small operations and no work.
    """
    cache: Any
    for cache in reversed(caches):
        if not cache.empty() and (arrays := _arrays([cache])):
            return arrays[:2][-1]
    return None


def _arrays(caches: Caches) -> list[mx.array]:
    return [leaf for cache in caches for _, leaf in tree_flatten(cache.state) if isinstance(leaf, mx.array)]
