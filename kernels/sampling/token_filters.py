"""The filters: which tokens a row leaves out before the draw. First top-k, top-p and min-p, then typical-p, last XTC.

Each sees what those before it left, renormalised. The first three keep a prefix of the tokens sorted by logit, ties to the lower id,
so together they are one count per row:

    sorted:   9.1  7.0  7.0  3.2  1.0 …      top-k keeps 4, top-p 3, min-p 5
    kept:     ^^^^^^^^^^^^^                  the smallest count; the cut at 7.0 takes its equals by ascending id

``reference`` in plain mx ops is the specification; ``on_cpu`` does the same in NumPy, and the library in csrc/sampling.h. ``z``: logits
over temperature, with row maximum 0; -inf for ids that the grammar leaves out, which are never kept.

``reference`` sorts no row. With a small top_k all cuts are found within the k largest (../largest.py), which moves V values 3 times through
memory; sorting and what follows took some 60. A row with top-p alone, or a large top_k, goes by blocks (cut.py: some 25, with both 35).
min-p alone compares (2). Which way a row goes, and so its bits, does not depend on the other rows.
"""

from functools import partial

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import largest
from . import typical_set, xtc
from .cut import in_blocks, last_id, reach, with_sums
from .inverse_cdf import running_sums
from .parameters import Floats, Ints, Parameters

FEW = 512  # the largest top_k for which a row's largest are put in order: above, it takes more passes than the cut by blocks


def reference(z: mx.array, p: Parameters) -> mx.array:
    """Computes the specification: z [B, V] with -inf for the tokens that the filters leave out."""
    if p.cut.any():
        z = _left(z, *_limits(z, p), mx.log(mx.array(np.where(p.cut, p.min_p, 0)))[:, None], mx.arange(z.shape[1]))
    if p.typical_p is not None:
        z = mx.where(typical_set.reference(z, p.typical_p), z, -mx.inf)
    if p.xtc is not None:
        z = mx.where(xtc.reference(z, p.xtc), z, -mx.inf)
    return z


@partial(mx.compile, shapeless=True)
def _left(z: mx.array, cut: mx.array, last: mx.array, least: mx.array, ids: mx.array) -> mx.array:
    """Leaves out what lies below ``cut`` or ``least``, and of those at the cut the ids behind ``last``; one pass. NaN stays."""
    return mx.where((z < cut) | ((z == cut) & (ids > last)) | (z < least), -mx.inf, z)


@partial(mx.compile, shapeless=True)
def _weights(keys: mx.array) -> mx.array:
    return mx.exp(-keys)


def _limits(z: mx.array, p: Parameters) -> tuple[mx.array, mx.array]:
    """Returns the least token of each row that top-k and top-p keep: its z and its id, both [B, 1]. Each row's way is its own."""
    b, v = z.shape
    cut, last = mx.full((b, 1), -mx.inf), mx.full((b, 1), v, dtype=mx.int32)
    few = p.cut & (p.top_k > 0) & (p.top_k <= FEW)
    many = p.cut & ~few & ((p.top_p < 1) | (p.top_k > 0))
    for chosen, limits in ((few, _limits_of_few), (many, _limits_of_many)):
        rows = np.flatnonzero(chosen)
        if len(rows) == b:
            return limits(z, p.top_k, p.top_p)
        if len(rows):
            at = mx.array(rows)
            cut[at], last[at] = limits(z[at], p.top_k[rows], p.top_p[rows])
    return cut, last


def _limits_of_few(z: mx.array, top_k: Ints, top_p: Floats) -> tuple[mx.array, mx.array]:
    """Does it for rows with a small top_k, all within the largest z."""
    ids = largest.reference(z, min(int(top_k.max()), z.shape[1]))
    ordered = mx.take_along_axis(z, ids, axis=-1)
    k, share = mx.array(np.minimum(top_k, z.shape[1]))[:, None], mx.array(top_p)[:, None]
    mass = running_sums(mx.exp(ordered))
    needed = share * mx.take_along_axis(mass, k - 1, axis=-1)
    count = mx.where(share < 1, mx.minimum((mass < needed).sum(axis=-1, keepdims=True) + 1, k), k)
    return mx.take_along_axis(ordered, count - 1, axis=-1), mx.take_along_axis(ids, count - 1, axis=-1)


def _limits_of_many(z: mx.array, top_k: Ints, top_p: Floats) -> tuple[mx.array, mx.array]:
    """Does it for other rows, without the V tokens in order."""
    v = z.shape[1]
    keys = mx.sort(in_blocks(-z, mx.inf), axis=-1)
    tokens = with_sums(keys, _weights(keys))
    far = mx.full((len(z), 1), mx.inf)
    k_cut, k_level, mass = far, far, tokens.total
    if (top_k > 0).any():
        k = mx.array(np.where(top_k > 0, np.minimum(top_k, v), v).astype(np.float32))[:, None]
        k_cut, below = reach(with_sums(keys, mx.ones_like(keys)), k)
        k_level = k - below
        mass = tokens.below(k_cut) + k_level * mx.exp(-k_cut)
    share = mx.array(top_p)[:, None]
    p_cut, below = reach(tokens, share * mass)
    p_level = mx.ceil((share * mass - below) / mx.exp(-p_cut))
    p_cut, p_level = mx.where(share < 1, p_cut, mx.inf), mx.where((share < 1) & (mx.exp(-p_cut) > 0), p_level, mx.inf)
    cut = -mx.minimum(k_cut, p_cut)  # z's that are level have one weight, so both count them
    level = mx.minimum(mx.where(k_cut == -cut, k_level, mx.inf), mx.where(p_cut == -cut, p_level, mx.inf))
    return cut, last_id(z == cut, mx.maximum(level, 1))


def on_cpu(z: Floats, rows: NDArray[np.intp], p: Parameters) -> None:
    """Computes ``reference`` in NumPy: sets what it leaves out of z [R, V] (the batch's ``rows``) to -inf, in place."""
    _cut(z, rows, p)
    if p.typical_p is not None:
        typical_set.on_cpu(z, p.typical_p[rows])
    if p.xtc is not None:
        xtc.on_cpu(z, p.xtc.levels[rows])


def _cut(z: Floats, rows: NDArray[np.intp], p: Parameters) -> None:
    """Applies top-k, top-p and min-p."""
    where = np.flatnonzero(p.cut[rows])
    if not len(where):
        return
    mine, x = rows[where], z[where]
    v = x.shape[1]
    top_k = np.where(p.top_k[mine] > 0, np.minimum(p.top_k[mine], v), v)
    width = int(top_k.max())
    if width < v:
        ordered = -np.sort(np.partition(-x, width - 1, axis=1)[:, :width], axis=1)
    else:
        ordered = np.sort(x, axis=1)[:, ::-1]
    mass = np.cumsum(np.exp(ordered), axis=1, dtype=np.float64)
    top_p = p.top_p[mine, None].astype(np.float64)
    needed = top_p * np.take_along_axis(mass, top_k[:, None] - 1, axis=1)
    count = np.where(top_p[:, 0] < 1, (mass < needed).sum(axis=1) + 1, v)
    with np.errstate(divide="ignore"):
        likely = (ordered >= np.log(p.min_p[mine])[:, None]).sum(axis=1)
    count = np.maximum(np.minimum(np.minimum(top_k, count), likely), 1)
    cut = np.take_along_axis(ordered, count[:, None] - 1, axis=1)
    kept = x >= cut
    surplus = np.flatnonzero(kept.sum(axis=1) > count)
    if len(surplus):  # equals at the cut: the lower ids are kept
        above, level = x[surplus] > cut[surplus], x[surplus] == cut[surplus]
        quota = count[surplus, None] - above.sum(axis=1, keepdims=True)
        kept[surplus] = above | (level & (np.cumsum(level, axis=1) <= quota))
    x[~kept] = -np.inf
    z[where] = x
