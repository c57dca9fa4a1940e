"""Measures how far a model's next-token distribution is from a reference's: KL divergence, the true token's probability, agreement.

Takes two sets of logits over one vocabulary, one position per row; float32, natural log. Metal and CUDA run ``specification``, in plain
mx ops. ``on_cpu`` does the same in NumPy, on zero-copy views. Knows no models and no text.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from . import logprobs
from .backend import on_cpu_path
from .logprobs import sum_by_blocks

CHUNK_BYTES = 2 << 20  # of one model's logits at once: what is computed from them fits the core's cache


@dataclass(slots=True, frozen=True)
class Divergence:
    """Figures of N positions. kls: [N] float32, KL(reference ‖ model) in nats. delta_ps: [N] float32, p(target) of the model
    less the reference's. agreements: [N] bool, both have the same most likely token (ties to the lower id).
    reference_logprobs: [N] float32, the reference's log_softmax at the target.
    """

    kls: NDArray[np.float32]
    delta_ps: NDArray[np.float32]
    agreements: NDArray[np.bool_]
    reference_logprobs: NDArray[np.float32]

    def __getitem__(self, index: slice | NDArray[np.intp]) -> "Divergence":
        """Selects positions."""
        return Divergence(self.kls[index], self.delta_ps[index], self.agreements[index], self.reference_logprobs[index])


def diverge(logits: mx.array, reference: mx.array, targets: NDArray[np.int32], fused: bool = False) -> Divergence:
    """Compares ``logits`` [N, V] with a ``reference``'s [N, V], of any float types. targets: [N], the true tokens.

    KL(ref ‖ model) = Σ p_ref · (log p_ref − log p_model) over the whole vocabulary, where 0 · log 0 = 0: infinite where the
    model excludes (logit -inf) what the reference does not, NaN where either's logits hold a NaN, and as far below 0 as rounding
    takes it. One evaluation. fused: what ``logprobs.fuses`` says of the scores beside: the reference's logprobs are made as they are,
    so that a model held against itself differs in no bit.
    """
    if on_cpu_path():
        logits, reference = logits.astype(mx.float32), reference.astype(mx.float32)
        mx.eval(logits, reference)
        return on_cpu(np.array(logits, copy=False), np.array(reference, copy=False), targets)
    parts = specification(logits, reference, mx.array(targets))
    if fused:
        parts = (*parts[:-1], logprobs.fused(reference, mx.array(targets))[0])
    mx.eval(*parts)
    return Divergence(*(np.array(part) for part in parts))


def join_divergences(parts: list[Divergence]) -> Divergence:
    """Joins consecutive ones into one."""
    return Divergence(
        np.concatenate([part.kls for part in parts]),
        np.concatenate([part.delta_ps for part in parts]),
        np.concatenate([part.agreements for part in parts]),
        np.concatenate([part.reference_logprobs for part in parts]),
    )


def specification(logits: mx.array, reference: mx.array, targets: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """Returns kls, delta_ps, agreements, reference_logprobs of logits [N, V], unevaluated.

    With x' = x − max x and Z = Σ exp x', KL = Σ p_ref · (x'_ref − x'_model) + log Z_model − log Z_ref: no large numbers are
    subtracted near the peaks, where the mass is.
    """
    x, r = logits.astype(mx.float32), reference.astype(mx.float32)
    x_peak, r_peak = x.max(axis=-1, keepdims=True), r.max(axis=-1, keepdims=True)
    x_down, r_down = x - x_peak, r - r_peak
    weights = mx.exp(r_down)
    x_log_total, r_log_total = mx.log(sum_by_blocks(mx.exp(x_down))), mx.log(sum_by_blocks(weights))
    terms = mx.where(weights > 0, weights * (r_down - x_down), 0.0)
    terms = mx.where((x == -mx.inf) & (r > -mx.inf), mx.inf, terms)  # by the logits: a tiny chance must not vanish in exp
    kls = sum_by_blocks(terms) / sum_by_blocks(weights) + (x_log_total - r_log_total)
    at_target = mx.take_along_axis(x, targets[:, None], axis=-1) - x_peak - x_log_total  # as logprobs.reference, to the bit
    reference_logprobs = mx.take_along_axis(r, targets[:, None], axis=-1) - r_peak - r_log_total
    delta_ps = mx.exp(at_target) - mx.exp(reference_logprobs)
    return kls[:, 0], delta_ps[:, 0], mx.argmax(x, axis=-1) == mx.argmax(r, axis=-1), reference_logprobs[:, 0]


def on_cpu(logits: NDArray[np.float32], reference: NDArray[np.float32], targets: NDArray[np.int32]) -> Divergence:
    """Computes ``specification`` in NumPy: logits [N, V], reference [N, V], targets [N]."""
    rows = max(1, CHUNK_BYTES // (4 * logits.shape[1]))
    starts = range(0, max(1, len(logits)), rows)
    return join_divergences([_chunk(logits[at : at + rows], reference[at : at + rows], targets[at : at + rows]) for at in starts])


def _chunk(x: NDArray[np.float32], r: NDArray[np.float32], targets: NDArray[np.int32]) -> Divergence:
    with np.errstate(invalid="ignore", divide="ignore"):  # a row of NaN or of -inf comes out as NaN, and is quarantined
        x_top, r_top = x.argmax(axis=-1), r.argmax(axis=-1)
        x_peak, r_peak = _at(x, x_top), _at(r, r_top)
        x_down, r_down = x - x_peak, r - r_peak
        terms = r_down - x_down
        x_total = np.exp(x_down, out=x_down).sum(axis=-1, keepdims=True)
        weights = np.exp(r_down, out=r_down)
        r_total = weights.sum(axis=-1, keepdims=True)
        terms *= weights
        sums = terms.sum(axis=-1, keepdims=True)
        undefined = np.flatnonzero(np.isnan(sums))  # where 0 · inf or inf − inf took part
        if len(undefined):
            allowed = r[undefined] > -np.inf
            terms = np.where(allowed & (x[undefined] == -np.inf), np.inf, np.where(allowed, terms[undefined], 0))
            sums[undefined] = terms.sum(axis=-1, keepdims=True)
        x_log_total, r_log_total = np.log(x_total), np.log(r_total)
        kls = sums / r_total + (x_log_total - r_log_total)
        at_target, reference_logprobs = (logprobs.on_cpu(y, targets, 0, stats=False).logprobs for y in (x, r))
        delta_ps = np.exp(at_target) - np.exp(reference_logprobs)
    return Divergence(kls[:, 0], delta_ps, x_top == r_top, reference_logprobs)


def _at(x: NDArray[np.float32], ids: NDArray[np.integer]) -> NDArray[np.float32]:
    """Returns the value at each row's id: x [N, V], ids [N] -> [N, 1]."""
    return np.take_along_axis(x, ids[:, None], axis=-1)
