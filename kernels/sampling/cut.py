"""The cut: how far to go through tokens in the order of their keys until their weights reach a sum, without sorting V tokens.

1. Blocks of 2048 are sorted, each alone: on Metal and CUDA mlx does that in one kernel that reads and writes V once. Only what is wider
   takes passes of merges: some 7 for V = 152k, each of which reads and writes keys and indices.
2. A sorted block is groups of 16. Their last keys are sorted; each ``window``-th of these V/16 is a probe. What lies up to a probe is
   summed exactly: whole groups, and in each block the one group that the probe divides.
3. Between two probes next to each other lie fewer than ``window`` groups and one a block: a few thousand tokens, which are sorted.

    last keys    1  1  2  4  4  7  9 …      probes: 2, 7, …; 0.6 of the weight lies up to 2, 0.97 up to 7
                       ^        ^           so the cut for 0.95 lies behind 2, at 7 or before

Ties are exact. All is in float32, by sums of at most some hundred terms in turn: a set may end elsewhere than in exact arithmetic only
where a running sum lies within 1e-5 of the total from the sum that is asked for. Rows are independent, and nothing is read on the host.
"""

from dataclasses import dataclass

import mlx.core as mx

from ..largest import padded
from ..logprobs import sum_by_blocks
from .inverse_cdf import running_sums

BLOCK = 2048  # the widest that mlx sorts in one kernel on Metal; 4096 on CUDA
GROUP = 16
PROBES = 32


@dataclass(slots=True, frozen=True)
class SortedBlocks:
    """Tokens of R rows, sorted within blocks. keys: [R, blocks, size], ascending, infinite behind the last token. weights: the same shape.

    sums: [R, blocks, size / GROUP], the groups' weights.
    """

    keys: mx.array
    weights: mx.array
    sums: mx.array

    @property
    def total(self) -> mx.array:
        """Sums the weights, [R, 1]."""
        return self.sums.sum(axis=-1).sum(axis=-1, keepdims=True)

    def below(self, key: mx.array) -> mx.array:
        """Sums the weights whose keys lie below ``key`` [R, 1], [R, 1]."""
        return with_sums(self.keys, mx.where(self.keys < key[:, :, None], self.weights, 0.0)).total


def with_sums(keys: mx.array, weights: mx.array) -> SortedBlocks:
    """Gives sorted blocks of keys [R, blocks, size] their weights, and sums up the groups."""
    return SortedBlocks(keys, weights, weights.reshape(*keys.shape[:2], -1, GROUP).sum(axis=-1))


def in_blocks(x: mx.array, beyond: float) -> mx.array:
    """Divides x [R, V] into the blocks that are sorted, [R, blocks, size], with ``beyond`` behind the last token."""
    size = min(BLOCK, -(-x.shape[1] // GROUP) * GROUP)
    return padded(x, size, beyond).reshape(x.shape[0], -1, size)


def reach(tokens: SortedBlocks, needed: mx.array) -> tuple[mx.array, mx.array]:
    """Returns the first key up to which the weights reach ``needed`` [R, 1], the last one where none does, and the sum below that key."""
    r, blocks, size = tokens.keys.shape
    per = size // GROUP
    groups, own = (x.reshape(r, blocks * per, GROUP) for x in (tokens.keys, tokens.weights))
    last = groups[:, :, -1]
    first_of_block = mx.arange(blocks) * per
    order = mx.argsort(last, axis=-1)
    window = -(-last.shape[1] // PROBES)
    probes = mx.take_along_axis(last, order, axis=-1)[:, window - 1 :: window]
    if last.shape[1] % window:  # the last probe has all before it
        probes = mx.concatenate([probes, last.max(axis=-1, keepdims=True)], axis=-1)
    ends = mx.cumsum(tokens.sums, axis=-1)
    sums = _up_to(probes, groups, own, mx.pad(ends, [(0, 0), (0, 0), (1, 0)]))
    step = ((sums < needed) & (probes < probes[:, -1:])).sum(axis=-1, keepdims=True)
    before = mx.maximum(step - 1, 0)
    upper = mx.take_along_axis(probes, step, axis=-1)
    lower = mx.where(step > 0, mx.take_along_axis(probes, before, axis=-1), -mx.inf)
    reached = mx.where(step > 0, mx.take_along_axis(sums, before, axis=-1), 0.0)
    # the groups that may hold a key between: the window's, and in each block the one in which or behind which ``upper`` lies
    place = step * window + mx.arange(window)
    behind = (last.reshape(r, blocks, per) < upper[:, :, None]).sum(axis=-1)
    ids = [mx.take_along_axis(order, mx.minimum(place, last.shape[1] - 1), axis=-1), mx.minimum(behind, per - 1) + first_of_block]
    there = [(place < last.shape[1]) & (mx.take_along_axis(last, ids[0], axis=-1) < upper), behind < per]
    member, there = mx.concatenate(ids, axis=-1)[:, :, None], mx.concatenate(there, axis=-1)[:, :, None]
    keys, weights = (mx.take_along_axis(x, member, axis=1) for x in (groups, own))
    between = there & (keys > lower[:, :, None]) & (keys < upper[:, :, None])
    keys, weights = mx.where(between, keys, mx.inf).reshape(r, -1), mx.where(between, weights, 0.0).reshape(r, -1)
    order = mx.argsort(keys, axis=-1)
    keys, weights = (mx.take_along_axis(x, order, axis=-1) for x in (keys, weights))
    short = (reached + running_sums(weights) < needed).sum(axis=-1, keepdims=True)
    found = mx.take_along_axis(keys, mx.minimum(short, keys.shape[1] - 1), axis=-1)  # infinite behind the last between
    cut = mx.where(found < upper, found, upper)
    return cut, reached + sum_by_blocks(mx.where(keys < cut, weights, 0.0))


def _up_to(probes: mx.array, groups: mx.array, own: mx.array, ends: mx.array) -> mx.array:
    """Sums the weights whose keys are at most each probe, [R, P]. ends: [R, blocks, groups a block + 1], sums of whole groups."""
    (r, p), (_, blocks, per) = probes.shape, (*ends.shape[:2], ends.shape[2] - 1)
    whole = (groups[:, :, -1].reshape(r, 1, blocks, per) <= probes[:, :, None, None]).sum(axis=-1)  # (R, P, blocks)
    divided = (mx.minimum(whole, per - 1) + mx.arange(blocks) * per).reshape(r, -1, 1)
    keys, weights = (mx.take_along_axis(x, divided, axis=1).reshape(r, p, blocks, -1) for x in (groups, own))
    parts = mx.where((keys <= probes[:, :, None, None]) & (whole < per)[:, :, :, None], weights, 0.0).sum(axis=-1)
    full = mx.take_along_axis(ends, whole.transpose(0, 2, 1), axis=-1).transpose(0, 2, 1)
    return (full + parts).sum(axis=-1)


def last_id(weights: mx.array, needed: mx.array) -> mx.array:
    """Returns the first id, in ascending order, with which weights [R, V] reach ``needed`` [R, 1] and are not 0; V where none does."""
    v = weights.shape[1]
    blocks = padded(weights, 256, 0).reshape(weights.shape[0], -1, 256)
    ends = mx.cumsum(blocks.sum(axis=-1), axis=-1)
    block = ((ends < needed) | (ends == 0)).sum(axis=-1, keepdims=True)
    before = mx.where(block > 0, mx.take_along_axis(ends, mx.maximum(block - 1, 0), axis=-1), 0)
    at = mx.minimum(block, ends.shape[1] - 1)
    inside = mx.cumsum(mx.take_along_axis(blocks, at[:, :, None], axis=1)[:, 0].astype(ends.dtype), axis=-1)
    place = ((inside < needed - before) | (inside == 0)).sum(axis=-1, keepdims=True)
    return mx.where(block < ends.shape[1], at * 256 + place, v).astype(mx.int32)
