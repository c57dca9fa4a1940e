"""Scores tokens by hidden states, by logits, or by the product that makes these.

Logits of states are made of a chunk of positions and reduced at once: there is no [B, T, V] array.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels import backend, divergence, fused_logprobs, logprobs
from ...kernels.divergence import Divergence, diverge
from ...kernels.fused_logprobs import Product
from ...kernels.logprobs import Scores, score
from ...kernels.sampling import logit_memory
from ...kernels.sampling.temperature_logprobs import tempered
from ..core.images import FIRST_IMAGE_ID
from ..core.logprob_options import LogprobOptions
from .network import Network

Meanwhile = Callable[[], None] | None  # what the host does while a GPU computes

TILES = 32  # rows that a processor with tiles multiplies at a time: fewer cost as much


def read_scores(
    networks: Sequence[Network],
    states: Sequence[mx.array],
    at: NDArray[np.intp],
    targets: NDArray[np.int32],
    rows: int,
    wanted: LogprobOptions,
    meanwhile: Meanwhile = None,
) -> tuple[Scores, Divergence | None]:
    """Returns scores of ``targets`` [N], N at least 1, at the rows ``at`` [N] of ``states`` [P, H].

    With a second network and its states, also the divergence of the first from it, over the ids that both have. Logits of twice ``rows``
    positions are in memory: the next are computed while these are reduced. There are none where a kernel reduces the product as it
    multiplies. A position with several targets goes through the head once. No other place makes logits of states. An echo's targets may
    be ids of pictures: their figures are NaN, or 0 where they are whole numbers.
    meanwhile: called once all is sent to a GPU and before the last of it is read, where such scores are ``sent_ahead``.
    """
    words = np.flatnonzero(targets < FIRST_IMAGE_ID)
    if len(words) < len(targets):
        assert len(networks) == 1, "ids of pictures are no targets of a comparison"
        few = at[words], targets[words]
        of_words = read_scores(networks, states, *few, rows, wanted, meanwhile)[0] if len(words) else no_scores(wanted)
        return logprobs.spread_scores(of_words, words, len(targets)), None
    pairs, back = np.unique(at.astype(np.int64) << 32 | targets, return_inverse=True)
    at, targets = (pairs >> 32).astype(np.intp), (pairs & 0xFFFFFFFF).astype(np.int32)
    ahead_of_host = len(networks) == 1 and sent_ahead(wanted)
    if len(networks) == 1 and not ahead_of_host:
        fused = _fused_scores(networks[0], states[0], at, targets, wanted)
        if fused is not None:
            return fused[back], None
    rows = max(rows // TILES * TILES, min(rows, TILES))
    if ahead_of_host:
        rows = logit_memory.lean_rows(rows, states[0].dtype.size)
        return _sent_scores(networks[0], states[0], at, targets, rows, wanted, meanwhile)[back], None
    chunks = _chunks(len(at), rows)
    scores: list[Scores] = []
    divergences: list[Divergence] = []
    ahead = _logits(networks, states, at[chunks[0]])
    for number, chunk in enumerate(chunks):
        logits = ahead
        ahead = _logits(networks, states, at[chunks[number + 1]]) if number + 1 < len(chunks) else []
        scores.append(score_logits(wanted, logits[0], targets[chunk]))
        if len(logits) > 1:
            width = min(part.shape[-1] for part in logits)  # ids beyond are padding of the vocabulary, not tokens
            fused = logprobs.fuses(wanted.top, wanted.stats)
            divergences.append(diverge(logits[0][:, :width], logits[1][:, :width], targets[chunk], fused))
    return logprobs.join_scores(scores)[back], divergence.join_divergences(divergences)[back] if divergences else None


def sent_ahead(wanted: LogprobOptions) -> bool:
    """Returns whether a GPU computes scores of logprobs alone while the host does other work."""
    return not backend.on_cpu_path() and logprobs.fuses(wanted.top, wanted.stats) and wanted.temperature in (None, 0.0, 1.0)


def _sent_scores(
    network: Network,
    states: mx.array,
    at: NDArray[np.intp],
    targets: NDArray[np.int32],
    rows: int,
    wanted: LogprobOptions,
    meanwhile: Meanwhile,
) -> Scores:
    """Returns ``read_scores`` of one network by ``logprobs.fused``. Two chunks' logits are in memory.

    One array goes to the device, and one comes back for each figure: on CUDA the memory for each may take a wait for the device.
    """
    told, parts = mx.array(np.stack([at, targets]).astype(np.int32)), list[tuple[mx.array, mx.array]]()
    for chunk in _chunks(len(at), rows):
        logits = _logits_at(network, states, at[chunk], told[0, int(chunk[0]) : int(chunk[-1]) + 1])
        parts.append(logprobs.fused(logits, told[1, int(chunk[0]) : int(chunk[-1]) + 1]))
        mx.async_eval(*parts[-1])
        if len(parts) > 1:
            mx.eval(*parts[-2])
    figures, greedy = (mx.concatenate(list(pieces)) for pieces in zip(*parts, strict=True))
    mx.async_eval(figures, greedy)
    if meanwhile is not None:
        meanwhile()
    found = np.array(figures)
    return Scores(found, greedy=np.array(greedy) if wanted.greedy else None, tempered=None if wanted.temperature is None else found)


def _chunks(count: int, rows: int) -> list[NDArray[np.intp]]:
    return [np.arange(begin, min(begin + rows, count)) for begin in range(0, count, rows)]


def _fused_scores(
    network: Network, states: mx.array, at: NDArray[np.intp], targets: NDArray[np.int32], wanted: LogprobOptions
) -> Scores | None:
    """Returns scores of ``targets`` at the ascending rows ``at`` without an array of logits; None where that is impossible."""
    rows, counts = np.unique(at, return_counts=True)
    product = network.product(states[mx.array(rows)])
    return None if product is None else score_product(wanted, product, counts, targets)


def _logits(networks: Sequence[Network], states: Sequence[mx.array], at: NDArray[np.intp]) -> list[mx.array]:
    """Starts to compute each network's float32 logits [N, V] at the rows ``at``."""
    logits = [_logits_at(network, state, at).astype(mx.float32) for network, state in zip(networks, states, strict=True)]
    mx.async_eval(*logits)
    return logits


def _logits_at(network: Network, states: mx.array, at: NDArray[np.intp], told: mx.array | None = None) -> mx.array:
    """Returns logits [N, V] at the ascending rows ``at`` [N], unevaluated; each row goes through the head once. told: ``at`` there."""
    rows, back = np.unique(at, return_inverse=True)
    if len(rows) == len(at):
        return network.logits(states[mx.array(rows) if told is None else told])
    return network.logits(states[mx.array(rows)])[mx.array(back)]


def score_logits(wanted: LogprobOptions, logits: mx.array, targets: NDArray[np.int32]) -> Scores:
    """Returns the scores of ``targets`` [N] under ``logits`` [N, V]."""
    scores = score(logits, targets, wanted.top, wanted.stats, wanted.greedy)
    if wanted.temperature is None:
        return scores
    if wanted.temperature in (0.0, 1.0):
        return replace(scores, tempered=scores.logprobs)
    return replace(scores, tempered=tempered(logits, targets, np.full(len(targets), wanted.temperature, np.float32)))


def score_product(wanted: LogprobOptions, product: Product, counts: NDArray[np.intp], targets: NDArray[np.int32]) -> Scores | None:
    """Returns the scores of ``targets`` [M] without making the logits [N, V], which are a product; None where logits are needed.

    counts: [N], how many of the targets each row of logits has.
    """
    if wanted.top or wanted.stats or wanted.temperature not in (None, 0.0, 1.0) or not fused_logprobs.suits(product):
        return None
    scores = fused_logprobs.on_cpu(product, counts, targets, wanted.greedy)
    return scores if wanted.temperature is None else replace(scores, tempered=scores.logprobs)


def no_scores(wanted: LogprobOptions) -> Scores:
    """Returns the scores of no tokens."""
    ints, floats, k = np.zeros(0, np.int32), np.zeros(0, np.float32), wanted.top
    tops = (ints.reshape(0, k), floats.reshape(0, k)) if k else (None, None)
    stats, greedy = (ints, floats) if wanted.stats else (None, None), ints.astype(np.bool_) if wanted.greedy else None
    return Scores(floats, *tops, *stats, greedy, None if wanted.temperature is None else floats)
