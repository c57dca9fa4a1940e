"""Logits to the figures a record holds: logprob of the chosen token, top-k, rank, entropy. Natural logs, float32.

``reference`` in plain mx ops is the specification. Metal and CUDA run it, except that logprobs alone are ``fused``. ``on_cpu`` does the
same on a zero-copy view, with sums by the library and the rest in NumPy: 20 times faster than mx there. Rows are independent.
"""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import largest, native
from .backend import device_name, on_cpu_path

BLOCK_BYTES = 512 << 10  # of logits at once on the CPU: what is computed from them fits the second cache
LEAST = -200.0  # float32 exp is 0 below -104


@dataclass(slots=True, frozen=True)
class Scores:
    """Figures of N scored tokens; None for those not wanted.

    logprobs: [N] float32, log_softmax at the target. top_ids, top_logprobs: [N, k], most likely first, ties to the lower
    id. ranks: [N] int32, 1 for the most likely, ties to the lower id. entropies: [N] float32, nats. greedy: [N] bool, the
    target is the most likely token, ties to the lower id. tempered: [N] float32, log_softmax of logits / temperature at the target.
    """

    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32] | None = None
    top_logprobs: NDArray[np.float32] | None = None
    ranks: NDArray[np.int32] | None = None
    entropies: NDArray[np.float32] | None = None
    greedy: NDArray[np.bool_] | None = None
    tempered: NDArray[np.float32] | None = None

    def __getitem__(self, index: slice | NDArray[np.intp]) -> "Scores":
        """Selects tokens."""
        return Scores(*(None if (part := getattr(self, name)) is None else part[index] for name in self.__slots__))  # pyright: ignore[reportArgumentType]


def score(logits: mx.array, targets: NDArray[np.int32], top: int = 0, stats: bool = False, greedy: bool = False) -> Scores:
    """Scores ``targets`` [N] under ``logits`` [N, V] of any float type; one evaluation."""
    if on_cpu_path():
        logits = logits.astype(mx.float32)
        mx.eval(logits)
        return on_cpu(np.array(logits, copy=False), targets, top, stats, greedy)
    if not fuses(top, stats):
        parts = reference(logits, mx.array(targets), top, stats, greedy)
    else:
        logprobs, is_greedy = fused(logits, mx.array(targets))
        parts = (logprobs, None, None, None, None, is_greedy if greedy else None)
    mx.eval(*(p for p in parts if p is not None))
    return Scores(*(None if p is None else np.array(p) for p in parts))  # pyright: ignore[reportArgumentType]


def fuses(top: int, stats: bool) -> bool:
    """Returns whether Metal and CUDA take a token's logprob from ``fused``: where logprobs alone are wanted."""
    return not (top or stats)


def join_scores(parts: list[Scores]) -> Scores:
    """Joins consecutive scores into one."""
    together = ([getattr(p, name) for p in parts] for name in Scores.__slots__)
    return Scores(*(None if values[0] is None else np.concatenate(values) for values in together))  # pyright: ignore[reportArgumentType]


def spread_scores(scores: Scores, places: NDArray[np.intp], length: int) -> Scores:
    """Returns ``scores`` at ``places`` [N] of ``length`` tokens. The others have NaN, and 0 where numbers are whole."""

    def spread(values: NDArray[np.generic]) -> NDArray[np.generic]:
        wide = np.full((length, *values.shape[1:]), np.nan if values.dtype.kind == "f" else 0, values.dtype)
        wide[places] = values
        return wide

    return Scores(*(None if (part := getattr(scores, name)) is None else spread(part) for name in Scores.__slots__))  # pyright: ignore[reportArgumentType]


def reference(
    logits: mx.array, targets: mx.array, top: int, stats: bool, greedy: bool = False
) -> tuple[mx.array, mx.array | None, mx.array | None, mx.array | None, mx.array | None, mx.array | None]:
    """Computes scores in mx ops, the specification: logits [N, V], targets [N] -> the fields of ``Scores`` in order, unevaluated."""
    x = logits.astype(mx.float32)
    peak = x.max(axis=-1, keepdims=True)
    below = x - peak  # first: where all logits are large, less of the difference is rounded away
    log_total = mx.log(sum_by_blocks(mx.exp(below)))
    at_target = mx.take_along_axis(x, targets[:, None], axis=-1)
    top_ids = top_logprobs = ranks = entropies = None
    if top:
        top_ids = largest.reference(x, top)
        top_logprobs = mx.take_along_axis(below, top_ids, axis=-1) - log_total
    if stats:
        ahead = (x > at_target) | ((x == at_target) & (mx.arange(x.shape[-1]) < targets[:, None]))
        ranks = ahead.sum(axis=-1).astype(mx.int32) + 1
        every_logprob = below - log_total
        p = mx.exp(every_logprob)
        entropies = -sum_by_blocks(mx.where(p > 0, p * every_logprob, 0.0))[:, 0]
    is_greedy = mx.argmax(x, axis=-1) == targets if greedy else None  # argmax takes the first of equals
    return (at_target - peak - log_total)[:, 0], top_ids, top_logprobs, ranks, entropies, is_greedy


def fused(logits: mx.array, targets: mx.array) -> tuple[mx.array, mx.array]:
    """Computes ``reference``'s logprobs and greedy flags by mlx's fused kernel, which reads half precision and sums in float32.

    That kernel gives an infinite loss where a logit is +inf; such rows are NaN here too, as those without any finite logit are.
    On the CPU mlx has no such kernel and sums in the logits' own type, so they become float32 first.
    """
    if device_name() == "cpu":
        logits = logits.astype(mx.float32)
    best = mx.argmax(logits, axis=-1, keepdims=True)
    peak = mx.take_along_axis(logits, best, axis=-1)[:, 0]
    logprobs = mx.where(mx.isinf(peak), mx.nan, -mx.fast.cross_entropy(logits, targets))
    return logprobs, best[:, 0] == targets


def sum_by_blocks(x: mx.array) -> mx.array:
    """Sums [N, V] over V, [N, 1], by blocks: one float32 running sum over a large vocabulary is off by 1e-4 on the CPU."""
    return mx.pad(x, [(0, 0), (0, -x.shape[1] % 256)]).reshape(x.shape[0], -1, 256).sum(axis=-1).sum(axis=-1, keepdims=True)


# For each row its line in a table of masks, [N] int32, -1 without one; and the table, [K, ceil(V / 32)] int32 (sampling/grammar_mask.py).
MaskedRows = tuple[NDArray[np.int32], NDArray[np.int32]]


@dataclass(slots=True, frozen=True)
class SoftmaxSums:
    """The figures from which the softmax of N rows of logits follows.

    best: [N] int32, the id of the largest logit, the lowest of equals. peak: [N] float32, its value. total: [N], the sum of
    exp(logit - peak). A row with a NaN has NaN for the last two, and the NaN's id as its best.
    """

    best: NDArray[np.int32]
    peak: NDArray[np.float32]
    total: NDArray[np.float32]


def softmax_sums(logits: NDArray[np.float32], allowed: MaskedRows | None = None) -> SoftmaxSums:
    """Sums up each row of ``logits`` [N, V], in one pass by the library, or in NumPy without it.

    ``allowed``: by the library, a row's best id is the best that it may draw; -1 where there is none, or one is NaN.
    """
    n = len(logits)
    if logits.size and logits.dtype == np.float32 and native.library() is not None:
        sums = SoftmaxSums(np.empty(n, np.int32), np.empty(n, np.float32), np.empty(n, np.float32))
        masks = map(native.maybe, allowed or (None, None))
        native.library().softmax_sums(np.ascontiguousarray(logits), sums.best, sums.peak, sums.total, *masks)
        return sums
    best = logits.argmax(axis=-1).astype(np.int32)
    peak = logits[np.arange(n), best]
    rows = max(1, BLOCK_BYTES // (4 * logits.shape[1]))
    spare = np.empty((min(rows, n), logits.shape[1]), np.float32)  # one buffer for all blocks: a new one a block costs as much as the exp
    total = np.empty(n, np.float32)
    with np.errstate(invalid="ignore"):
        for at in range(0, n, rows):
            block = slice(at, at + rows)
            below = np.subtract(logits[block], peak[block, None], out=spare[: min(rows, n - at)])
            total[block] = np.exp(below, out=below).sum(axis=-1)
    return SoftmaxSums(best, peak, total)


def on_cpu(
    logits: NDArray[np.float32], targets: NDArray[np.int32], top: int, stats: bool, greedy: bool = False, sums: SoftmaxSums | None = None
) -> Scores:
    """``reference`` on the CPU: logits [N, V] float32, targets [N]. ``sums``: what ``softmax_sums`` gives of them, where it is known."""
    n, v = logits.shape
    sums = softmax_sums(logits) if sums is None else sums
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of NaN or of -inf comes out as NaN, and is quarantined
        log_total = np.log(sums.total)
        found = Scores(logits[np.arange(n), targets] - sums.peak - log_total, greedy=sums.best == targets if greedy else None)
        if not (top or stats):
            return found
        rows = max(1, BLOCK_BYTES // (4 * v))
        parts = [
            _more(logits[at : at + rows], targets[at : at + rows], sums.peak[at : at + rows], log_total[at : at + rows], top, stats)
            for at in range(0, max(1, n), rows)
        ]
    return replace(join_scores(parts), greedy=found.greedy)


def _more(
    x: NDArray[np.float32], targets: NDArray[np.int32], peak: NDArray[np.float32], log_total: NDArray[np.float32], top: int, stats: bool
) -> Scores:
    """Returns one block's scores, x [N, V], with top-k, ranks and entropies."""
    top_ids = top_logprobs = ranks = entropies = None
    at_target = x[np.arange(len(x)), targets][:, None]
    if top:
        top_ids = largest.on_cpu(x, top)
        top_logprobs = np.take_along_axis(x, top_ids, axis=-1) - peak[:, None] - log_total[:, None]
    if stats:
        equals_before = [np.count_nonzero(row[:target] == row[target]) for row, target in zip(x, targets, strict=True)]
        ranks = (np.count_nonzero(x > at_target, axis=-1) + np.array(equals_before) + 1).astype(np.int32)
        below = np.subtract(x, peak[:, None])
        e = np.exp(below)
        total = e.sum(axis=-1)
        np.maximum(below, LEAST, out=below)  # e is 0 there: 0 * log 0 = 0
        entropies = np.log(total) - np.multiply(e, below, out=e).sum(axis=-1) / total
    return Scores(at_target[:, 0] - peak - log_total, top_ids, top_logprobs, ranks, entropies)
