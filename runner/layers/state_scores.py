"""Scores of hidden states. Logits are made of a chunk of positions at a time and reduced at once: no [B, T, V] array comes to be."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ...kernels import divergence, logprobs
from ...kernels.divergence import Divergence, diverge
from ...kernels.logprobs import Scores
from ..core.logprob_options import LogprobOptions
from .network import Network

TILES = 32  # rows that a product takes at a time where processors multiply in tiles: fewer cost as much


def read_scores(
    networks: Sequence[Network],
    states: Sequence[mx.array],
    at: NDArray[np.intp],
    targets: NDArray[np.int32],
    rows: int,
    wanted: LogprobOptions,
) -> tuple[Scores, Divergence | None]:
    """Scores of ``targets`` [N] at the rows ``at`` [N] of ``states`` [P, H], at least one; the one place that makes logits of states.

    With a second reader and its states: how far the first is from it, too, over the ids that both have. Logits of ``rows``
    positions stand at once, twice: the next are computed while these are reduced; none do where a product's are reduced as they
    come. A position that several targets share is put through the head once.
    """
    pairs, back = np.unique(at.astype(np.int64) << 32 | targets, return_inverse=True)
    at, targets = (pairs >> 32).astype(np.intp), (pairs & 0xFFFFFFFF).astype(np.int32)
    if len(networks) == 1 and (found := _as_they_come(networks[0], states[0], at, targets, wanted)) is not None:
        return found[back], None
    rows = max(rows // TILES * TILES, min(rows, TILES))
    chunks = [np.arange(begin, min(begin + rows, len(at))) for begin in range(0, len(at), rows)]
    scores: list[Scores] = []
    divergences: list[Divergence] = []
    ahead = _logits(networks, states, at[chunks[0]])
    for number, chunk in enumerate(chunks):
        logits = ahead
        ahead = _logits(networks, states, at[chunks[number + 1]]) if number + 1 < len(chunks) else []
        scores.append(wanted.scores(logits[0], targets[chunk]))
        if len(logits) > 1:
            width = min(part.shape[-1] for part in logits)  # ids that one of them lacks are padding: none of the tokenizer's
            divergences.append(diverge(logits[0][:, :width], logits[1][:, :width], targets[chunk]))
    return logprobs.join_scores(scores)[back], divergence.join_divergences(divergences)[back] if divergences else None


def _as_they_come(
    network: Network, states: mx.array, at: NDArray[np.intp], targets: NDArray[np.int32], wanted: LogprobOptions
) -> Scores | None:
    """Scores of ``targets`` at the rows ``at``, which ascend, without an array of logits; None where that cannot be."""
    rows, counts = np.unique(at, return_counts=True)
    product = network.product(states[mx.array(rows)])
    return None if product is None else wanted.of_product(product, counts, targets)


def _logits(networks: Sequence[Network], states: Sequence[mx.array], at: NDArray[np.intp]) -> list[mx.array]:
    """float32 logits [N, V] of each reader at the rows ``at``, under way."""
    rows, back = np.unique(at, return_inverse=True)
    found = [network.logits(state[mx.array(rows)]).astype(mx.float32) for network, state in zip(networks, states, strict=True)]
    if len(rows) < len(at):
        found = [logits[mx.array(back)] for logits in found]
    mx.async_eval(*found)
    return found
