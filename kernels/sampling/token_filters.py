"""The filters: which tokens a row leaves out before the draw. First top-k, top-p and min-p, then typical-p, last XTC.

Each sees what those before it left, renormalised. The first three keep a prefix of the tokens sorted by logit, ties to the lower id,
so together they are one count per row:

    sorted:   9.1  7.0  7.0  3.2  1.0 …      top-k keeps 4, top-p 3, min-p 5
    kept:     ^^^^^^^^^^^^^                  the smallest count; the cut at 7.0 takes its equals by ascending id

``reference`` in plain mx ops is the specification; ``on_cpu`` does the same in NumPy, and the library in csrc/sampling.h. ``z``: logits
over temperature, with row maximum 0; -inf for ids that the grammar leaves out, which are never kept.
"""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import top_choices, typical_set
from .inverse_cdf import running_sums
from .parameters import Floats, Parameters


def reference(z: mx.array, p: Parameters) -> mx.array:
    """Computes the specification: z [B, V] with -inf for the tokens that the filters leave out."""
    if p.cut.any():
        z = mx.where(_likeliest(z, p), z, -mx.inf)
    if p.typical_p is not None:
        z = mx.where(typical_set.reference(z, p.typical_p), z, -mx.inf)
    if p.top_choices is not None:
        z = mx.where(top_choices.reference(z, p.top_choices), z, -mx.inf)
    return z


def _likeliest(z: mx.array, p: Parameters) -> mx.array:
    """Marks the tokens that top-k, top-p and min-p keep, bool [B, V]."""
    v = z.shape[-1]
    ordered = -mx.sort(-z, axis=-1)
    top_k = mx.array(np.where(p.top_k > 0, np.minimum(p.top_k, v), v))[:, None]
    mass = running_sums(mx.exp(ordered))
    needed = mx.array(p.top_p)[:, None] * mx.take_along_axis(mass, top_k - 1, axis=-1)
    count = mx.where(mx.array(p.top_p)[:, None] < 1, (mass < needed).sum(axis=-1, keepdims=True) + 1, v)
    likely = (ordered >= mx.log(mx.array(p.min_p))[:, None]).sum(axis=-1, keepdims=True)
    count = mx.maximum(mx.minimum(mx.minimum(top_k, count), likely), 1)
    cut = mx.take_along_axis(ordered, count - 1, axis=-1)
    level = z == cut
    quota = count - (z > cut).sum(axis=-1, keepdims=True)
    kept = (z > cut) | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= quota))
    return kept | mx.array(~p.cut)[:, None]  # pyright: ignore[reportArgumentType]  (mlx's stubs leave NumPy arrays out)


def on_cpu(z: Floats, rows: NDArray[np.intp], p: Parameters) -> None:
    """Computes ``reference`` in NumPy: sets what it leaves out of z [R, V] (the batch's ``rows``) to -inf, in place."""
    _cut(z, rows, p)
    if p.typical_p is not None:
        typical_set.on_cpu(z, p.typical_p[rows])
    if p.top_choices is not None:
        top_choices.on_cpu(z, p.top_choices.levels[rows])


def _cut(z: Floats, rows: NDArray[np.intp], p: Parameters) -> None:
    """Does what ``_likeliest`` does."""
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
