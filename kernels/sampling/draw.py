"""Draws token ids [B] from logits [B, V] with per-row parameters, with each token's logprob under the distribution sampled from.

Order: the grammar's mask, edits (logits_processors.py), then greedy or temperature, the filters (token_filters.py), renormalise, draw.
What the grammar leaves out stays out, whatever an edit adds. On request each token also gets its tempered logprob
(temperature_logprobs.py) and the ids that could be drawn. Metal and CUDA run ``reference``, the specification in plain mx ops;
``on_cpu`` does the same by the library or in NumPy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .. import logprobs, native
from ..backend import on_cpu_path
from ..logprobs import Scores
from . import grammar_mask, inverse_cdf, token_filters
from . import logits_processors as edits
from . import temperature_logprobs as _tempered
from .parameters import Floats, Ints, Parameters


@dataclass(slots=True)
class Drawn:
    """B drawn tokens, of B rows or of one. ids: [B]. sampled: [B], their logprobs under the distribution sampled from.

    Figures that were not requested are None. tempered: [B], log_softmax of logits / temperature at the ids, before any mask, edit or
    filter; at temperature 0 as at 1. kept: for each the ascending ids that could be drawn; None where no filter left any out.

    A row from which nothing can be drawn (its logits are NaN, or those that are left are all -inf) has NaN in ``sampled``. Its id is in
    [0, V) and means nothing.
    """

    ids: Ints
    sampled: Floats
    tempered: Floats | None = None
    kept: list[Ints | None] | None = None

    def __getitem__(self, rows: NDArray[np.intp]) -> "Drawn":
        """Selects rows."""
        tempered = None if self.tempered is None else self.tempered[rows]
        return Drawn(self.ids[rows], self.sampled[rows], tempered, None if self.kept is None else [self.kept[row] for row in rows.tolist()])


Array = TypeVar("Array", mx.array, Floats)


class Launched:
    """A step's draw that the device computes. ids: [B] int32, for the next step, not read yet. ``read`` waits for it."""

    def __init__(self, ids: mx.array, read: Callable[[], tuple[Drawn, Scores]]):
        self.ids, self.read = ids, read


def launch(
    logits: mx.array,
    parameters: Parameters,
    top: int = 0,
    stats: bool = False,
    tempered: bool = False,
    kept: bool = False,
    scored: bool = True,
) -> Launched:
    """Sends one decode step's draw to the device: the tokens of B rows, and their scores. A CPU has drawn on return.

    logits: [B, V], or [B, T, V] of which the last position is drawn.
    top: how many alternatives the scores hold. stats: they hold ranks and entropies too. tempered: adds logprobs at the row's temperature,
    which equal the scores to the bit in rows at temperature 1 or 0. kept: adds the ids that could be drawn.
    Scores are under the model's own distribution (temperature 1, before any mask or edit). ``scored=False`` leaves them out where none of
    the others needs them: ``Drawn.sampled`` takes their place, so that greedy rows need no sums.
    Raises ValueError where the grammar's mask does not fit the logits.
    """
    scored = scored or bool(top or stats or tempered)
    if parameters.allowed is not None:
        parameters.allowed.check(logits.shape[0], logits.shape[-1])
    launch_now = _launch_on_cpu if on_cpu_path() else _launch_on_device
    if not tempered:
        return launch_now(logits, parameters, top, stats, False, kept, scored)
    own = (parameters.temperature == 0) | (parameters.temperature == 1)
    launched = launch_now(logits, parameters, top, stats, not own.all(), kept, scored)

    def read() -> tuple[Drawn, Scores]:
        drawn, scores = launched.read()
        drawn.tempered = scores.logprobs if drawn.tempered is None else np.where(own, scores.logprobs, drawn.tempered)
        return drawn, scores

    return Launched(launched.ids, read)


def _last(logits: Array) -> Array:
    return logits if logits.ndim == 2 else logits[:, -1]


def _launch_on_cpu(logits: mx.array, parameters: Parameters, top: int, stats: bool, tempered: bool, kept: bool, scored: bool) -> Launched:
    """``launch`` by the library or NumPy, on a view of the logits."""
    logits = logits.astype(mx.float32)
    mx.eval(logits)
    x = _last(native.view(logits))
    masks = None if parameters.allowed is None else grammar_mask.masked_rows(parameters.allowed, len(x))
    sums = logprobs.softmax_sums(x, masks) if scored else None
    drawn = on_cpu(x, parameters, tempered, kept, sums)
    scores = logprobs.on_cpu(x, drawn.ids, top, stats, sums=sums) if scored else Scores(drawn.sampled)
    return Launched(mx.array(drawn.ids), lambda: (drawn, scores))


def _launch_on_device(
    logits: mx.array, parameters: Parameters, top: int, stats: bool, tempered: bool, kept: bool, scored: bool
) -> Launched:
    """``launch`` by mx's ops, sent at once."""
    logits = _last(logits)
    ids, sampled, under, left = reference(logits, parameters, tempered, kept)
    parts = logprobs.reference(logits, ids, top, stats) if scored else (sampled,)
    mx.async_eval(*(p for p in (ids, sampled, under, left, *parts) if p is not None))

    def read() -> tuple[Drawn, Scores]:
        sets = None if left is None else _ids_of(np.array(left), parameters)
        drawn = Drawn(np.array(ids), np.array(sampled), None if under is None else np.array(under), sets)
        return drawn, Scores(*(None if p is None else np.array(p) for p in parts))  # pyright: ignore[reportArgumentType]

    return Launched(ids, read)


def _ids_of(left: NDArray[np.bool_], p: Parameters) -> list[Ints | None]:
    """Returns each row's ids that ``left`` [B, V] marks; None for a row without filters."""
    limited = p.filtered | p.greedy
    return [np.flatnonzero(row).astype(np.int32) if own else None for row, own in zip(left, limited, strict=True)]


# ------------------------------------------------------------------------------------------------ the specification


def reference(
    logits: mx.array, p: Parameters, tempered: bool = False, kept: bool = False
) -> tuple[mx.array, mx.array, mx.array | None, mx.array | None]:
    """Computes the specification: logits [B, V] -> the fields of ``Drawn``, unevaluated; the kept ids as bool [B, V]."""
    given = x = logits.astype(mx.float32)
    if p.edits is not None:  # in place, so on a copy
        x = edits.reference(mx.array(given), p.edits, p.repetition, p.presence, p.frequency)
    if p.allowed is not None:  # an edit changes single logits: behind the edits the mask gives what it gives before them, and wins
        x = grammar_mask.reference(x, p.allowed)
    best, peak = mx.argmax(x, axis=-1), x.max(axis=-1)
    possible = mx.isfinite(peak)
    ids, under = best, mx.where(possible, 0.0, mx.nan)
    left = greedy = None
    if not p.greedy.all():
        greedy, temperature, uniforms = _sent_together(p)
        z = (x - peak[:, None]) / temperature[:, None]
        if p.filtered.any():
            z = token_filters.reference(z, p)
        e = mx.exp(z)
        drawn, total = inverse_cdf.reference(e, uniforms)
        ids = mx.where(greedy, best, drawn)
        own, weight = (mx.take_along_axis(each, drawn[:, None], axis=-1)[:, 0] for each in (z, e))
        under = mx.where(greedy, under, mx.where((weight == total) & (total > 0), 0.0, own - mx.log(total)))  # the only one: 0
        left = z > -mx.inf
    if kept:
        alone = (mx.arange(x.shape[-1]) == best[:, None]) & possible[:, None]
        left = alone if left is None or greedy is None else mx.where(greedy[:, None], alone, left)
    return ids.astype(mx.int32), under, _tempered.reference(given, ids, p.temperature) if tempered else None, left if kept else None


def _sent_together(p: Parameters) -> tuple[mx.array, mx.array, mx.array]:
    """Returns which rows are greedy, what logits are divided by, and the uniform numbers, each [B], of one array.

    On CUDA an array from the host costs a step some tenths of a millisecond.
    """
    greedy, divisor, uniforms = mx.array(np.stack([p.greedy, _tempered.divisor(p.temperature), p.uniforms]).astype(np.float32))
    return greedy > 0, divisor, uniforms


# ------------------------------------------------------------------------------------------------------ on the CPU


def on_cpu(given: Floats, p: Parameters, tempered: bool = False, kept: bool = False, sums: logprobs.SoftmaxSums | None = None) -> Drawn:
    """Computes ``reference`` by the library, or in NumPy without it: logits [B, V] float32, which stay as they are.

    ``sums``: the sums of the logits and these masks, if the caller has them.
    """
    x = given if p.edits is None else edits.on_cpu(given.copy(), p.edits, p.repetition, p.presence, p.frequency)
    known = None if p.edits is not None else sums
    left = np.zeros(x.shape, np.bool_) if kept else None
    ids, under = (_by_numpy if native.library() is None else _by_library)(x, p, known, left)
    if left is not None:
        rows = np.flatnonzero(p.greedy & ~np.isnan(under))
        left[rows, ids[rows]] = True
    found = None
    if tempered:
        found = under.copy()  # right already where nothing but the temperature changes a row
        rows = np.flatnonzero(p.greedy | p.filtered | p.masked | (p.edits is not None))
        if len(rows):
            found[rows] = _tempered.on_cpu(given[rows], ids[rows], p.temperature[rows])
    return Drawn(ids, under, found, None if left is None else _ids_of(left, p))


def _possible(peaks: Floats) -> Floats:
    """Returns greedy rows' logprobs [B] of their best logits: 0, or NaN where that is not finite."""
    return np.where(np.isfinite(peaks), np.float32(0), np.float32(np.nan))


def _best(x: Floats, known: logprobs.SoftmaxSums | None) -> tuple[Ints, Floats]:
    """Returns each row's best id, and its largest logit. Of ``known`` masks a best id heeds them, and the logit does not."""
    if known is not None:
        return known.best.copy(), known.peak
    ids = np.argmax(x, axis=-1).astype(np.int32)
    return ids, x[np.arange(len(x)), ids]


def _by_library(x: Floats, p: Parameters, known: logprobs.SoftmaxSums | None, left: NDArray[np.bool_] | None) -> tuple[Ints, Floats]:
    """Returns ids [B] and their logprobs. Marks in ``left`` what the rows that are not greedy could draw.

    known: the sums of ``x`` and the masks. The library finds the best of rows with a mask, and their logprobs.
    """
    masked = p.masked
    if known is None and masked.any():
        ids = np.array([-1 if own else row.argmax() for row, own in zip(x, masked, strict=True)], np.int32)
        peaks = x[np.arange(len(x)), ids]
    else:
        ids, peaks = _best(x, known)
    under = _possible(peaks)
    if p.greedy.all() and p.allowed is None:
        return ids, under
    with np.errstate(divide="ignore"):
        least = np.log(p.min_p)
    typical = np.ones_like(least) if p.typical_p is None else p.typical_p
    levels = np.full_like(least, np.inf) if p.xtc is None else p.xtc.levels
    of_rows = (p.temperature, p.top_k, p.top_p, least, typical, levels, p.uniforms)
    held = (left, *((None, None) if p.allowed is None else grammar_mask.masked_rows(p.allowed, len(x))))
    native.library().draw(np.ascontiguousarray(x), ids, *map(np.ascontiguousarray, of_rows), under, *map(native.maybe, held))
    return ids, under


def _by_numpy(x: Floats, p: Parameters, known: logprobs.SoftmaxSums | None, left: NDArray[np.bool_] | None) -> tuple[Ints, Floats]:
    """Does the same in NumPy."""
    if p.allowed is not None:
        x, known = grammar_mask.on_cpu(x.copy(), p.allowed), None
    ids, peaks = _best(x, known)
    under = _possible(peaks)
    rows = np.flatnonzero(~p.greedy)
    if not len(rows):
        return ids, under
    with np.errstate(invalid="ignore"):  # a row of NaN stays one; its scores quarantine it
        z = x[rows] - x[rows, ids[rows]][:, None]
    z /= p.temperature[rows, None]
    if p.filtered.any():
        token_filters.on_cpu(z, rows, p)
    if left is not None:
        left[rows] = z > -np.inf
    e = np.exp(z)
    drawn, total = inverse_cdf.on_cpu(e, p.uniforms[rows])
    ids[rows], at = drawn, (np.arange(len(rows)), drawn)
    with np.errstate(divide="ignore", invalid="ignore"):  # the same row
        under[rows] = np.where((e[at] == total) & (total > 0), 0, z[at] - np.log(total))
    return ids, under
