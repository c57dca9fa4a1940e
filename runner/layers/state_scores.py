"""Scores tokens by hidden states. Logits are made of a chunk of positions and reduced at once: there is no [B, T, V] array."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels import divergence, logprobs
from ...kernels.divergence import Divergence, diverge
from ...kernels.logprobs import Scores
from ..core.images import FIRST_IMAGE_ID
from ..core.logprob_options import LogprobOptions
from .logit_scores import no_scores, score_logits, score_product
from .network import Network

TILES = 32  # rows that a processor with tiles multiplies at a time: fewer cost as much


def read_scores(
    networks: Sequence[Network],
    states: Sequence[mx.array],
    at: NDArray[np.intp],
    targets: NDArray[np.int32],
    rows: int,
    wanted: LogprobOptions,
) -> tuple[Scores, Divergence | None]:
    """Returns scores of ``targets`` [N], N at least 1, at the rows ``at`` [N] of ``states`` [P, H].

    With a second network and its states, also the divergence of the first from it, over the ids that both have. Logits of twice ``rows``
    positions are in memory: the next are computed while these are reduced. There are none where a kernel reduces the product as it
    multiplies. A position with several targets goes through the head once. No other place makes logits of states. An echo's targets may
    be ids of pictures: their figures are NaN, or 0 where they are whole numbers.
    """
    words = np.flatnonzero(targets < FIRST_IMAGE_ID)
    if len(words) < len(targets):
        assert len(networks) == 1, "ids of pictures are no targets of a comparison"
        of_words = read_scores(networks, states, at[words], targets[words], rows, wanted)[0] if len(words) else no_scores(wanted)
        return logprobs.spread_scores(of_words, words, len(targets)), None
    pairs, back = np.unique(at.astype(np.int64) << 32 | targets, return_inverse=True)
    at, targets = (pairs >> 32).astype(np.intp), (pairs & 0xFFFFFFFF).astype(np.int32)
    if len(networks) == 1 and (fused := _fused_scores(networks[0], states[0], at, targets, wanted)) is not None:
        return fused[back], None
    rows = max(rows // TILES * TILES, min(rows, TILES))
    chunks = [np.arange(begin, min(begin + rows, len(at))) for begin in range(0, len(at), rows)]
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


def _fused_scores(
    network: Network, states: mx.array, at: NDArray[np.intp], targets: NDArray[np.int32], wanted: LogprobOptions
) -> Scores | None:
    """Returns scores of ``targets`` at the ascending rows ``at`` without an array of logits; None where that is impossible."""
    rows, counts = np.unique(at, return_counts=True)
    product = network.product(states[mx.array(rows)])
    return None if product is None else score_product(wanted, product, counts, targets)


def _logits(networks: Sequence[Network], states: Sequence[mx.array], at: NDArray[np.intp]) -> list[mx.array]:
    """Starts to compute each network's float32 logits [N, V] at the rows ``at``."""
    rows, back = np.unique(at, return_inverse=True)
    logits = [network.logits(state[mx.array(rows)]).astype(mx.float32) for network, state in zip(networks, states, strict=True)]
    if len(rows) < len(at):
        logits = [own[mx.array(back)] for own in logits]
    mx.async_eval(*logits)
    return logits
