"""KV caches of a batch, on top of mlx-lm's: make, fork, extend, filter, and what they cost.

A batch is either *padded* (mlx-lm's batch caches; rows of unlike length, new rows can join) or *exact* (the model's plain
caches holding B rows of one length; rows can leave or be forked by index, none can join):

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
from ...kernels.backend import device_name
from .cpu_blocks import row_cache, serves
from .prefix_view import PrefixView
from .ragged_kv_cache import STEP, RaggedKVCache


class Cache(Protocol):
    """What the batch caches of mlx-lm have in common, as far as it is used here."""

    state: Any

    def prepare(self, *, lengths: list[int], right_padding: list[int]) -> None:
        """Announces that the next calls' rows hold so many tokens, and pads behind them."""
        ...

    def finalize(self) -> None:
        """Moves the pads of the calls since ``prepare`` to the left."""
        ...

    def filter(self, batch_indices: mx.array) -> None:
        """Keeps the rows named, in that order."""
        ...

    def extend(self, other: Any) -> None:
        """Appends the rows of another cache."""
        ...


Caches = list[Cache]


def fresh(model: Any, rows: int, padded: bool) -> Caches:
    """Empty caches, one a layer, for ``rows`` rows. Raises AttributeError where a layer's cache cannot be padded."""
    plain = make_prompt_cache(model)
    if not padded:
        return cast(Caches, plain)
    if _apart(model, plain):
        return [RaggedKVCache(rows) for _ in plain]
    return _stepping([type(layer).merge([layer] * rows) for layer in plain])


def read_only_views(base: Caches | None) -> Caches | None:
    """What a call takes in place of caches if nothing of it is kept, behind nothing or on top of the one row of ``base``."""
    return None if base is None else cast(Caches, [PrefixView(cache) for cache in cast(list[KVCache], base)])


def needs_no_caches(model: Any) -> bool:
    """Whether there can be such calls: where the CPU's kernel serves every layer, of however many tokens."""
    return native.tiles() and _apart(model, make_prompt_cache(model))


def _apart(model: Any, plain: list[Any]) -> bool:
    """Whether a batch's rows may lie apart in memory: where the CPU's kernel serves every layer."""
    layers: Sequence[Any] = getattr(model, "layers", ())
    return len(layers) == len(plain) and all(type(cache) is KVCache for cache in plain) and all(map(serves, layers))


def _stepping(caches: Caches) -> Caches:
    """The caches, growing by fewer tokens than mlx-lm's 256 where most of those would be zeros that are written, joined and copied."""
    for cache in kept_inside(caches):
        if type(cache) is BatchKVCache and device_name() == "cpu":
            cache.step = STEP
    return caches


def prepare_padding(caches: Caches, lengths: list[int], width: int) -> None:
    """Says that of the next ``width`` columns each row's tokens are the first ``lengths``; behind them stand pads."""
    if min(lengths) == width:
        return
    for cache in caches:
        cache.prepare(lengths=lengths, right_padding=[width - n for n in lengths])


def set_call_lengths(caches: Caches, lengths: list[int], width: int) -> None:
    """Says the same of a call of ``width`` columns to caches that keep states: ``lengths`` tokens are left, less than none too.

    A state is taken where a row ends, which mlx-lm looks for in a call that ends before (its ``ssm_attn`` reads beyond the call).
    """
    for cache in kept_inside(caches):
        if isinstance(cache, ArraysCache) and cache.lengths is not None:
            cache.lengths = mx.array([min(n, width) for n in lengths])


def finish_padding(caches: Caches) -> None:
    """Ends what was announced: pads move to the left. A cache that no layer fills stays as it is."""
    for cache in kept_inside(caches):
        if isinstance(cache, ArraysCache) or not cache.empty():
            cache.finalize()


def kept_inside(caches: Caches) -> Iterator[Any]:
    """The caches themselves, and in place of lists of caches (mlx-lm's CacheList) what they list."""
    cache: Any
    for cache in caches:
        if hasattr(cache, "caches"):
            yield from kept_inside(list(cache.caches))
        else:
            yield cache


def joined(parts: list[Caches]) -> Caches:
    """The rows of padded caches behind each other, in the first ones, which are changed."""
    for mine, *others in zip(*parts, strict=True):
        for other in others:
            mine.extend(other)
    return parts[0]


def merged(model: Any, rows: list[Caches]) -> Caches:
    """New padded caches of the plain caches of one row each, which stay as they are and may be of unlike length."""
    layers: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    if _apart(model, list(rows[0])):
        return [row_cache(own) for own in layers]
    return _stepping([type(own[0]).merge(list(own)) for own in layers])


def select(caches: Caches, rows: list[int], of: int, padded: bool) -> None:
    """Keeps ``rows`` of the ``of`` rows in place, in that order; an index that stands twice forks its row."""
    if rows == list(range(of)):
        return
    index = mx.array(rows)
    for cache in caches:
        if padded:
            cache.filter(index)
        else:
            _select_plain(cache, index, of)


def _select_plain(cache: Any, index: mx.array, of: int) -> None:
    def pick(leaf: Any) -> Any:
        return leaf[index] if isinstance(leaf, mx.array) and leaf.ndim and leaf.shape[0] == of else leaf

    _change(cache, pick)


def _change(cache: Any, change: Callable[[Any], Any]) -> None:
    """Puts ``change`` of each leaf of a plain cache in its place."""
    for name, value in vars(cache).items():
        if name == "caches":  # a list of caches (mlx-lm's CacheList)
            for inner in value:
                _change(inner, change)
        else:
            setattr(cache, name, tree_map(change, value))


def forked(caches: Caches, rows: list[int], of: int, padded: bool) -> Caches:
    """New caches that hold ``rows`` of ``caches``, which stay as they are."""
    twins = copy.deepcopy(caches)  # mlx arrays are changed in place by -= and by slices: sharing them would tie the two
    select(twins, rows, of, padded)
    return twins


def widened(caches: Caches, rows: int) -> Caches:
    """New plain caches of ``rows`` rows, each the one row that ``caches`` hold, which stay as they are."""

    def repeat(leaf: Any) -> Any:
        return mx.broadcast_to(leaf, (rows, *leaf.shape[1:])) if isinstance(leaf, mx.array) and leaf.ndim and leaf.shape[0] == 1 else leaf

    twins = copy.deepcopy(caches)
    for cache in twins:
        _change(cache, repeat)
    return twins


def trimmable(caches: Caches, tokens: int) -> bool:
    """Whether plain caches can take so many tokens more and give them back: where nothing is forgotten for them."""
    return all(
        type(cache) is KVCache or (type(cache) is RotatingKVCache and cache.offset + tokens < cache.max_size)
        for cache in cast(list[Any], caches)
    )


def trim(caches: Caches, tokens: int) -> None:
    """Takes the newest ``tokens`` of each row back out of ``trimmable`` plain caches."""
    for cache in cast(list[KVCache | RotatingKVCache], caches):
        cache.trim(tokens)


def evaluate_caches(caches: Caches) -> None:
    """Computes what the caches hold."""
    mx.eval([leaf for cache in caches for _, leaf in tree_flatten(cache.state) if isinstance(leaf, mx.array)])


def growth(caches: Caches) -> tuple[float, float]:
    """(bytes a cached token, bytes besides) that a row takes in ``caches``, which hold one row.

    A window that slides is counted as if it grew: an upper bound.
    """
    by_token = by_row = 0.0
    cache: Any
    for cache in caches:
        inner = growth(list(cache.caches)) if hasattr(cache, "caches") else _growth(cache)
        by_token, by_row = by_token + inner[0], by_row + inner[1]
    return by_token, by_row


def _growth(cache: Any) -> tuple[float, float]:
    by_token = by_row = 0.0
    for name, value in vars(cache).items():
        arrays = [leaf for _, leaf in tree_flatten({name: value}) if isinstance(leaf, mx.array)]
        if name in ("keys", "values"):  # [1, heads, positions, width], quantized or not
            by_token += sum(a.nbytes / a.shape[2] for a in arrays)
        else:
            by_row += sum(a.nbytes for a in arrays)
    return by_token, by_row
