"""Draws token ids [B] from logits [B, V] with per-row parameters, with each token's logprob under the distribution sampled from.

Order: edits (masks, bias, penalties), then greedy or temperature, top-k, top-p, min-p, renormalise, draw. The three
filters all keep a prefix of the tokens sorted by logit (ties to the lower id), so together they are one count per row:

    sorted:   9.1  7.0  7.0  3.2  1.0 …      top-k keeps 4, top-p 3, min-p 5
    kept:     ^^^^^^^^^^^^^                  the smallest count; the cut at 7.0 takes its equals by ascending id

On request each token also gets its tempered logprob (temperature_logprobs.py) and the ids that could be drawn. Metal and CUDA run
``reference``, the specification in plain mx ops; ``on_cpu`` does the same by the library or in NumPy.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import logits_processors as edits
from . import logprobs, native
from . import temperature_logprobs as _tempered
from .backend import device_name
from .logits_processors import Edits
from .logprobs import Scores

BLOCK = 256

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass(slots=True)
class Parameters:
    """Sampling parameters of B rows, one entry per row; temperature 0 is greedy, top_k 0 is off. ``uniforms``: [B] in [0, 1)."""

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    repetition: Floats
    presence: Floats
    frequency: Floats
    uniforms: Floats
    edits: Edits | None = None

    @property
    def greedy(self) -> NDArray[np.bool_]:
        """Marks the rows that take the most likely token."""
        return self.temperature == 0

    @property
    def filtered(self) -> NDArray[np.bool_]:
        """Marks the rows that leave tokens out before the draw."""
        return ~self.greedy & ((self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0))


@dataclass(slots=True)
class Drawn:
    """B drawn tokens, of B rows or of one. ids: [B]. sampled: [B], their logprobs under the distribution sampled from.

    Figures that were not requested are None. tempered: [B], log_softmax of logits / temperature at the ids, before any edit or filter; at
    temperature 0 as at 1. kept: for each the ascending ids that could be drawn; None where nothing was left out.
    """

    ids: Ints
    sampled: Floats
    tempered: Floats | None = None
    kept: list[Ints | None] | None = None


def draw(
    logits: mx.array,
    parameters: Parameters,
    top: int = 0,
    stats: bool = False,
    tempered: bool = False,
    kept: bool = False,
    scored: bool = True,
) -> tuple[Drawn, Scores]:
    """Draws one decode step's tokens, with one evaluation: logits [B, V] -> the tokens of B rows, and their scores.

    Scores are under the model's own distribution (temperature 1, before any edit). The tempered logprobs of rows at temperature 1 or 0
    equal them to the bit. Without ``scored``, the logprobs sampled from take their place: greedy rows then need no sums.
    """
    scored = scored or bool(top or stats or tempered)
    own = (parameters.temperature == 0) | (parameters.temperature == 1)
    draw_now = _draw_on_cpu if device_name() == "cpu" else _draw_on_device
    drawn, scores = draw_now(logits, parameters, top, stats, tempered and not own.all(), kept, scored)
    if tempered:
        drawn.tempered = scores.logprobs if drawn.tempered is None else np.where(own, scores.logprobs, drawn.tempered)
    return drawn, scores


def _draw_on_cpu(
    logits: mx.array, parameters: Parameters, top: int, stats: bool, tempered: bool, kept: bool, scored: bool
) -> tuple[Drawn, Scores]:
    """``draw`` by the library or NumPy, on a view of the logits."""
    logits = logits.astype(mx.float32)
    mx.eval(logits)
    x = np.array(logits, copy=False)
    sums = logprobs.softmax_sums(x) if scored else None
    drawn = on_cpu(x, parameters, tempered, kept, sums)
    return drawn, logprobs.on_cpu(x, drawn.ids, top, stats, sums=sums) if scored else Scores(drawn.sampled)


def _draw_on_device(
    logits: mx.array, parameters: Parameters, top: int, stats: bool, tempered: bool, kept: bool, scored: bool
) -> tuple[Drawn, Scores]:
    """``draw`` by mx's ops, evaluated at once."""
    ids, sampled, under, mask = reference(logits, parameters, tempered, kept)
    parts = logprobs.reference(logits, ids, top, stats) if scored else (sampled,)
    mx.eval(*(p for p in (ids, sampled, under, mask, *parts) if p is not None))
    sets = None if mask is None else _ids_of(np.array(mask), parameters)
    drawn = Drawn(np.array(ids), np.array(sampled), None if under is None else np.array(under), sets)
    return drawn, Scores(*(None if p is None else np.array(p) for p in parts))  # pyright: ignore[reportArgumentType]


def _ids_of(mask: NDArray[np.bool_], p: Parameters) -> list[Ints | None]:
    """Returns each row's ids that ``mask`` [B, V] keeps; None for a row that leaves none out."""
    limited = p.filtered | p.greedy
    return [np.flatnonzero(row).astype(np.int32) if own else None for row, own in zip(mask, limited, strict=True)]


# ------------------------------------------------------------------------------------------------ the specification


def reference(
    logits: mx.array, p: Parameters, tempered: bool = False, kept: bool = False
) -> tuple[mx.array, mx.array, mx.array | None, mx.array | None]:
    """Computes the specification: logits [B, V] -> the fields of ``Drawn``, unevaluated; the kept ids as bool [B, V]."""
    given = logits.astype(mx.float32)
    x = (
        given if p.edits is None else edits.reference(mx.array(given), p.edits, p.repetition, p.presence, p.frequency)
    )  # whose rows are set in place
    best = mx.argmax(x, axis=-1)
    ids, under = best, mx.where(mx.isfinite(x.max(axis=-1)), 0.0, mx.nan)  # NaN: all are masked
    greedy, mask = _mask(p.greedy), None
    if not p.greedy.all():
        z = (x - x.max(axis=-1, keepdims=True)) / mx.where(greedy, 1.0, mx.array(p.temperature))[:, None]
        if p.filtered.any():
            z = mx.where(_kept(z, p), z, -mx.inf)
        drawn, total = _drawn(mx.exp(z), mx.array(p.uniforms))
        ids = mx.where(greedy, best, drawn)
        under = mx.where(greedy, under, mx.take_along_axis(z, drawn[:, None], axis=-1)[:, 0] - mx.log(total))
        mask = z > -mx.inf
    if kept:
        alone = mx.arange(x.shape[-1]) == best[:, None]
        mask = alone if mask is None else mx.where(greedy[:, None], alone, mask)
    return ids.astype(mx.int32), under, _tempered.reference(given, ids, p.temperature) if tempered else None, mask if kept else None


def _mask(rows: NDArray[np.bool_]) -> mx.array:
    return mx.array(rows)  # pyright: ignore[reportArgumentType]  (mlx's stubs leave NumPy arrays out)


def _kept(z: mx.array, p: Parameters) -> mx.array:
    """Marks the tokens that the filters keep, bool [B, V]. ``z``: logits over temperature, with row maximum 0."""
    v = z.shape[-1]
    ordered = -mx.sort(-z, axis=-1)
    top_k = mx.array(np.where(p.top_k > 0, np.minimum(p.top_k, v), v))[:, None]
    mass = _cumulative(mx.exp(ordered))
    needed = mx.array(p.top_p)[:, None] * mx.take_along_axis(mass, top_k - 1, axis=-1)
    count = mx.where(mx.array(p.top_p)[:, None] < 1, (mass < needed).sum(axis=-1, keepdims=True) + 1, v)
    likely = (ordered >= mx.log(mx.array(p.min_p))[:, None]).sum(axis=-1, keepdims=True)
    count = mx.maximum(mx.minimum(mx.minimum(top_k, count), likely), 1)
    cut = mx.take_along_axis(ordered, count - 1, axis=-1)
    level = z == cut
    quota = count - (z > cut).sum(axis=-1, keepdims=True)
    kept = (z > cut) | (level & (mx.cumsum(level.astype(mx.int32), axis=-1) <= quota))
    return kept | _mask(~p.filtered)[:, None]


def _cumulative(x: mx.array) -> mx.array:
    """Returns running sums of [B, V] over V, by blocks: no sum adds more than a few hundred float32 terms in turn."""
    b, v = x.shape
    inside = mx.cumsum(mx.pad(x, [(0, 0), (0, -v % BLOCK)]).reshape(b, -1, BLOCK), axis=-1)
    ends = mx.cumsum(inside[:, :, -1], axis=-1)
    before = mx.pad(ends[:, :-1], [(0, 0), (1, 0)])
    return (inside + before[:, :, None]).reshape(b, -1)[:, :v]


def _drawn(e: mx.array, uniforms: mx.array) -> tuple[mx.array, mx.array]:
    """Draws by inverse CDF over ascending ids: the first id whose cumulative sum exceeds u · total. ids [B], totals [B]."""
    b, v = e.shape
    padded = mx.pad(e, [(0, 0), (0, -v % BLOCK)]).reshape(b, -1, BLOCK)
    ends = mx.cumsum(padded.sum(axis=-1), axis=-1)  # (B, blocks)
    total = ends[:, -1]
    threshold = (uniforms * total)[:, None]
    block = mx.minimum((ends <= threshold).sum(axis=-1, keepdims=True), _last_positive(ends[:, 1:] - ends[:, :-1]) + 1)
    before = mx.where(block > 0, mx.take_along_axis(ends, mx.maximum(block - 1, 0), axis=-1), 0.0)
    inside = mx.take_along_axis(padded, block[:, :, None], axis=1)[:, 0]  # (B, BLOCK)
    position = mx.minimum((mx.cumsum(inside, axis=-1) <= threshold - before).sum(axis=-1, keepdims=True), _last_positive(inside))
    # rounding may stop on a token of probability zero: take the next one with a chance
    ahead = (inside > 0) & (mx.arange(BLOCK) >= position)
    return (block * BLOCK)[:, 0] + mx.argmax(ahead, axis=-1), total


def _last_positive(x: mx.array) -> mx.array:
    """Returns the index [B, 1] of the last positive entry in each row of ``x`` [B, N]; -1 where there is none."""
    return mx.where(x > 0, mx.arange(x.shape[-1]), -1).max(axis=-1, keepdims=True) if x.shape[-1] else mx.full((x.shape[0], 1), -1)


# ------------------------------------------------------------------------------------------------------ on the CPU


def on_cpu(given: Floats, p: Parameters, tempered: bool = False, kept: bool = False, sums: logprobs.SoftmaxSums | None = None) -> Drawn:
    """Computes ``reference`` by the library, or in NumPy without it: logits [B, V] float32, which stay as they are.

    ``sums``: the sums of the logits, if the caller has them.
    """
    x = given if p.edits is None else edits.on_cpu(given.copy(), p.edits, p.repetition, p.presence, p.frequency)
    ids = np.argmax(x, axis=-1).astype(np.int32) if sums is None or p.edits is not None else sums.best.copy()
    under = np.where(np.isfinite(x[np.arange(len(x)), ids]), np.float32(0), np.float32(np.nan))  # NaN: all are masked
    left = np.zeros(x.shape, np.bool_) if kept else None
    if left is not None:
        left[np.arange(len(x)), ids] = True
    if not p.greedy.all():
        (_by_numpy if native.library() is None else _by_library)(x, p, ids, under, left)
    found = under.copy() if tempered else None  # right already where nothing but the temperature changes a row
    rows = np.flatnonzero(p.greedy | p.filtered | (p.edits is not None))
    if found is not None and len(rows):
        found[rows] = _tempered.on_cpu(given[rows], ids[rows], p.temperature[rows])
    return Drawn(ids, under, found, None if left is None else _ids_of(left, p))


def _by_library(x: Floats, p: Parameters, ids: Ints, under: Floats, left: NDArray[np.bool_] | None) -> None:
    """Draws for the rows that are not greedy. Writes to ``ids``, ``under`` and ``left``, which hold the greedy results."""
    with np.errstate(divide="ignore"):
        least = np.log(p.min_p)
    of_rows = (p.temperature, p.top_k, p.top_p, least, p.uniforms)
    native.library().draw(np.ascontiguousarray(x), ids, *map(np.ascontiguousarray, of_rows), under, None if left is None else id(left))


def _by_numpy(x: Floats, p: Parameters, ids: Ints, under: Floats, left: NDArray[np.bool_] | None) -> None:
    """Does the same in NumPy."""
    rows = np.flatnonzero(~p.greedy)
    with np.errstate(invalid="ignore"):  # a row of NaN stays one; its scores quarantine it
        z = x[rows] - x[rows, ids[rows]][:, None]
    z /= p.temperature[rows, None]
    if p.filtered.any():
        _filter(z, rows, p)
    if left is not None:
        left[rows] = z > -np.inf
    e = np.exp(z)
    drawn, total = _drawn_on_cpu(e, p.uniforms[rows])
    ids[rows] = drawn
    with np.errstate(divide="ignore", invalid="ignore"):  # the same row
        under[rows] = z[np.arange(len(rows)), drawn] - np.log(total)


def _filter(z: Floats, rows: NDArray[np.intp], p: Parameters) -> None:
    """Sets the tokens of ``z`` [R, V] (the batch's ``rows``) that the filters leave out to -inf, in place."""
    where = np.flatnonzero(p.filtered[rows])
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


def _drawn_on_cpu(e: Floats, uniforms: Floats) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Draws by inverse CDF over ascending ids, in float64: ids [R], totals [R]."""
    b, v = e.shape
    ends = np.cumsum(np.add.reduceat(e, np.arange(0, v, BLOCK), axis=1, dtype=np.float64), axis=1)
    total = ends[:, -1]
    threshold = uniforms * total
    block = (ends <= threshold[:, None]).sum(axis=1)  # below total, so within the blocks
    block = np.minimum(block, ends.shape[1] - 1)
    before = np.where(block > 0, ends[np.arange(b), block - 1], 0.0)
    ids = block[:, None] * BLOCK + np.arange(BLOCK)
    inside = np.where(ids < v, np.take_along_axis(e, np.minimum(ids, v - 1), axis=1), 0)
    reached = (np.cumsum(inside, axis=1, dtype=np.float64) > (threshold - before)[:, None]) & (inside > 0)
    last = BLOCK - 1 - np.argmax((inside > 0)[:, ::-1], axis=1)
    position = np.where(reached.any(axis=1), np.argmax(reached, axis=1), last)
    return np.minimum(block * BLOCK + position, v - 1), total  # a row of NaN has no token that is reached
