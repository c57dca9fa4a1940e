"""Tests what a row's bits in a batch depend on, for deterministic mode: on the other rows' tokens, on its own slot."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..core.kv_quantization import KVQuantization
from ..core.logprob_options import LogprobOptions
from ..core.outcomes import Scored
from ..core.requests import ScoreRequest
from ..engine.setup import Setup
from ..layers.kv_cache import make_caches
from ..layers.network import Network
from ..scoring.scorer import Scorer
from .trial import outcomes_of, random_ids, trial_score_request

WIDTHS = (9, 13)  # tokens; OpenBLAS's Haswell kernels treat all rows alike only where rows times tokens is a multiple of 12


def slots_independent(network: Any, vocabulary: int, rows: int, kv: KVQuantization | None = None) -> bool:
    """Returns whether a row's logits keep their bits when only the other rows' tokens change, as deterministic mode needs.

    kv: how cached keys and values are quantized.
    """
    rng = np.random.default_rng(1)
    first = rng.integers(0, vocabulary, (rows, 12))
    second = rng.permutation(rng.integers(0, vocabulary, (rows, 12)))
    kept = range(0, rows, max(2, rows // 4))  # never all rows
    for row in kept:
        second[row] = first[row]
    a, b = (_two_steps(network, x, kv) for x in (first, second))
    return all(np.array_equal(a[:, row], b[:, row]) for row in kept)


def slots_alike(setup: Setup) -> bool:
    """Returns whether a passage gets the same bits in each slot of deterministic mode's scoring batches.

    Some kernels of a BLAS sum the last rows of a product in another way than the first.
    """
    rng, rows = np.random.default_rng(3), setup.limits.rows
    setup = replace(setup, wanted=LogprobOptions(echo=True, top=3, stats=True), static=True).with_features(any_slot=True)
    for width in WIDTHS:
        passages = random_ids(rng, setup.vocabulary, [width + 1] * rows)  # a passage's last token does not go through the model
        requests = [trial_score_request(row, ids) for row, ids in enumerate(passages)]
        moved = requests[1:] + requests[:1]
        if _bits(setup, requests) != _bits(setup, moved):
            return False
    return True


def _bits(setup: Setup, requests: Sequence[ScoreRequest]) -> dict[int, list[bytes]]:
    """Returns the bytes of each row's scores. A row that fails has none."""
    scored = [outcome for outcome in outcomes_of(Scorer(setup), requests) if isinstance(outcome, Scored)]
    parts = [(outcome.row, [getattr(score, name) for score in outcome.scores for name in score.__slots__]) for outcome in scored]
    return {row: [part.tobytes() for part in own if part is not None] for row, own in parts}


def _two_steps(network: Any, tokens: NDArray[np.int64], kv: KVQuantization | None) -> NDArray[np.float32]:
    """Returns the logits [2, B, V] of two decode steps after a prefill of ``tokens`` [B, T]."""
    caches = make_caches(network, len(tokens), padded=False, kv=kv)
    mx.eval(Network(network)(mx.array(tokens[:, :-2]), caches))
    return np.stack([np.array(Network(network)(mx.array(tokens[:, [at]]), caches)[:, -1].astype(mx.float32)) for at in (-2, -1)])
