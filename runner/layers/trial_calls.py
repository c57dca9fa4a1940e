"""Calls by which a network is tried before and after it gets our kernels, and what their logits may differ by."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..core.errors import first_line
from .kv_cache import make_caches
from .network import Network

# Largest difference allowed, as a share of the logits' spread: rounding moves them by 1e-5 of it, a wrong mask by a tenth.
TOLERANCE = 1e-3
LENGTHS = (24, 7)  # tokens of the trial's rows
Way = Callable[[Network, list[NDArray[np.int32]]], mx.array]


def disagreement(truth: list[list[NDArray[np.float32] | str]], results: list[list[NDArray[np.float32] | str]]) -> str | None:
    """Says what is wrong with the ``results``, or None. A call that crashes without the substitutes proves nothing."""
    for right, ours in zip([x for part in truth for x in part], [x for part in results for x in part], strict=True):
        if isinstance(right, str):
            continue
        if isinstance(ours, str):
            return f"the model crashes ({ours})"
        never = np.isneginf(right)  # some models give it to ids that no token has
        if not np.array_equal(never, np.isneginf(ours)):
            return "other logits are -inf"
        allowed, gap = TOLERANCE * max(float(right[~never].std()), 1e-3), float(np.abs(right[~never] - ours[~never]).max())
        if not gap <= allowed:
            return f"logits move by {gap:.2g} (allowed {allowed:.2g})"
    return None


def tried_calls(
    network: Any, vocabulary: int, lengths: tuple[int, int], ways: Sequence[Way] | None = None
) -> list[NDArray[np.float32] | str]:
    """Returns the logits of each way in which a run calls the network, or the message of its crash.

    A call of few tokens takes as long as reading all weights, so the number of calls is the cost of a trial. Calls without caches are
    tried elsewhere (``scoring_check``).
    """
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, vocabulary, n).astype(np.int32) for n in lengths]
    return [_result(way, Network(network), rows) for way in ways or WAYS]


def _result(way: Way, network: Network, rows: list[NDArray[np.int32]]) -> NDArray[np.float32] | str:
    try:
        return np.array(way(network, rows).astype(mx.float32))
    except Exception as error:  # a model file may fail in any way
        return first_line(error, None)


def run_alone(network: Network, rows: list[NDArray[np.int32]]) -> mx.array:
    """Runs a long call, another on top of it, and a decode step."""
    caches = make_caches(network.model, 1, padded=False)
    parts = [network(mx.array(part)[None], caches)[:, -3:] for part in (rows[0][:-4], rows[0][-4:-1], rows[0][-1:])]
    return mx.concatenate(parts, axis=1)


def _run_in_a_batch(network: Network, rows: list[NDArray[np.int32]]) -> mx.array:
    """Runs rows of different lengths, padded on the right, and a decode step."""
    width, lengths = len(rows[0]) - 1, [len(row) - 1 for row in rows]
    tokens = np.stack([np.pad(row[:-1], (0, width - len(row) + 1)) for row in rows])
    caches = make_caches(network.model, len(rows), padded=True)
    for cache in caches:
        cache.prepare(lengths=lengths, right_padding=[width - n for n in lengths])
    first = network(mx.array(tokens), caches, lengths=lengths)
    mx.eval(first)
    for cache in caches:
        cache.finalize()
    last = network(mx.array(np.stack([row[-1:] for row in rows])), caches)
    seen = [first[row, n - 1] for row, n in enumerate(lengths)]
    return mx.stack([*seen, *last[:, 0]])


def run_one_by_one(network: Network, rows: list[NDArray[np.int32]]) -> mx.array:
    """Returns the logits that ``_run_in_a_batch`` asks for, of each row alone."""
    seen: list[mx.array] = []
    last: list[mx.array] = []
    for row in rows:
        caches = make_caches(network.model, 1, padded=False)
        seen.append(network(mx.array(row[:-1])[None], caches)[0, -1])
        last.append(network(mx.array(row[-1:])[None], caches)[0, -1])
    return mx.stack([*seen, *last])


WAYS: Sequence[Way] = (run_alone, _run_in_a_batch)
