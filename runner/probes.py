"""What a loaded model can be trusted with in a batch, found by trying: padded rows, rows of one length, rows alone.

Two rows of unlike length go through the batch as the engine runs it (prefill, a row that joins, decode) and each alone;
where the logits disagree, or the batch crashes, the next cautious way is tried. Knows models, not names of them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .cache import fresh, growth, select

log = logging.getLogger("mlx_bulk")

Way = Literal["padded", "exact", "alone"]
Batched = Callable[[Any, list[NDArray[np.int32]], list[NDArray[np.float32]]], float]
LENGTHS = (24, 7, 15)  # of the probe's prompts; the last one joins while the others decode
STEPS = 4
# The largest difference allowed: what rows without pads differ by in a batch of copies, four times; at least what float32 is
# promised to keep to, or four roundings of the largest logit; at most a share of the logits' spread, as a device's noise may
# be large: a pad that is attended to moves logits by a tenth of their spread.
NOISE = 4
PROMISE = 1e-4  # a logprob, in float32
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # relative
SPREAD = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 1.5e-1}


@dataclass(slots=True, frozen=True)
class Found:
    """How rows may share a batch, the largest difference seen there (in logits), and what a row's caches cost in bytes."""

    way: Way
    difference: float
    token_bytes: float
    row_bytes: float
    reason: str = ""


def probe(network: Any, vocabulary: int) -> Found:
    """Finds the fastest way that gives the same logits as each row alone."""
    prompts = _prompts(vocabulary)
    single = [_alone(network, x) for x in prompts]
    allowed = _allowed(network, prompts, single)
    token_bytes, row_bytes = _growth(network, prompts[0])
    reason = ""
    ways: tuple[tuple[Way, Batched], ...] = (("padded", _padded), ("exact", _exact))
    for way, batched in ways:
        try:
            difference = batched(network, prompts, single)
        except Exception as error:  # a probe that crashes is a probe that failed
            reason = f"{way} batches crash: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            continue
        if difference <= allowed:
            return Found(way, difference, token_bytes, row_bytes, reason)
        reason = f"{way} batches change logits by {difference:.2g} (allowed {allowed:.2g})"
    return Found("alone", 0.0, token_bytes, row_bytes, reason)


def _prompts(vocabulary: int) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary, n).astype(np.int32) for n in LENGTHS]


def _alone(network: Any, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits [STEPS, V] of the last positions of one prompt, from one call without padding."""
    caches = fresh(network, 1, padded=False)
    return _numpy(network(mx.array(ids)[None], cache=caches)[0, -STEPS:])


def allowed_difference(network: Any, vocabulary: int) -> float:
    """How far a network's logits may differ between two ways to compute them."""
    prompts = _prompts(vocabulary)
    return _allowed(network, prompts, [_alone(network, x) for x in prompts])


def _allowed(network: Any, prompts: list[NDArray[np.int32]], single: list[NDArray[np.float32]]) -> float:
    logits, precision = np.concatenate(single), _precision(network, prompts[0])
    least = NOISE * ROUNDING[precision] * float(np.abs(logits).max()) if precision in ROUNDING else PROMISE
    most = SPREAD[precision] * max(float(logits.std()), 1e-3)
    return min(most, max(least, NOISE * _noise(network, prompts[0])))  # NaN, which allows nothing, where one of the logits is


def _noise(network: Any, ids: NDArray[np.int32]) -> float:
    """How far logits of a prompt are from those of copies of it beside each other: rounding alone, as nothing else can enter.

    0 where the network takes one row only.
    """
    alone, worst = _alone(network, ids), 0.0
    try:
        for rows in (2, 3):
            logits = _numpy(network(mx.array(np.tile(ids, (rows, 1))), cache=fresh(network, rows, padded=False))[:, -STEPS:])
            worst = max(worst, *(_difference(*pair) for row in logits for pair in zip(row, alone, strict=True)))
    except Exception:  # a model file may fail in any way
        return 0.0
    return worst


def _precision(network: Any, ids: NDArray[np.int32]) -> str:
    """The type that the logits come in."""
    return str(network(mx.array(ids)[None]).dtype).removeprefix("mlx.core.")


def _growth(network: Any, ids: NDArray[np.int32]) -> tuple[float, float]:
    caches = fresh(network, 1, padded=False)
    mx.eval(network(mx.array(ids)[None], cache=caches))
    return growth(caches)


def _padded(network: Any, prompts: list[NDArray[np.int32]], single: list[NDArray[np.float32]]) -> float:
    """Two rows prefilled together, right-padded; a third joins; all decode; the first leaves before the last step."""
    caches = _prefilled(network, prompts[:2])
    for mine, theirs in zip(caches, _prefilled(network, prompts[2:]), strict=True):
        mine.extend(theirs)
    order, worst = [0, 1, 2], 0.0
    for step in range(STEPS):
        logits = _numpy(network(mx.array([[int(prompts[i][step - STEPS])] for i in order]), cache=caches)[:, -1])
        worst = max(worst, *(_difference(logits[at], single[i][step]) for at, i in enumerate(order)))
        if step == STEPS - 2:
            select(caches, [1, 2], 3, padded=True)
            order = [1, 2]
    return worst


def _prefilled(network: Any, prompts: list[NDArray[np.int32]]) -> list[Any]:
    lengths = [len(x) - STEPS for x in prompts]
    width = max(lengths)
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, x, n in zip(tokens, prompts, lengths, strict=True):
        row[:n] = x[:n]
    caches = fresh(network, len(prompts), padded=True)
    padding = [width - n for n in lengths]
    if any(padding):
        for cache in caches:
            cache.prepare(lengths=lengths, right_padding=padding)
    mx.eval(network(mx.array(tokens), cache=caches))
    if any(padding):
        for cache in caches:
            cache.finalize()
    return caches


def _exact(network: Any, prompts: list[NDArray[np.int32]], single: list[NDArray[np.float32]]) -> float:
    """Two rows of one length on plain caches; the first leaves before the last step."""
    other = (prompts[0] + 1) % int(prompts[0].max() + 1)
    truth = [single[0], _alone(network, other)]
    rows = np.stack([prompts[0], other])
    caches = fresh(network, 2, padded=False)
    mx.eval(network(mx.array(rows[:, :-STEPS]), cache=caches))
    order, worst = [0, 1], 0.0
    for step in range(STEPS):
        logits = _numpy(network(mx.array(rows[order][:, [step - STEPS]]), cache=caches)[:, -1])
        worst = max(worst, *(_difference(logits[at], truth[i][step]) for at, i in enumerate(order)))
        if step == STEPS - 2:
            select(caches, [1], 2, padded=False)
            order = [1]
    return worst


def _difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Largest difference of two rows of logits, up to a constant; infinite where one is NaN."""
    gap = np.abs((a - a.mean()) - (b - b.mean())).max()
    return float(gap) if np.isfinite(gap) else float("inf")


def _numpy(logits: mx.array) -> NDArray[np.float32]:
    return np.array(logits.astype(mx.float32))


def slots_independent(network: Any, vocabulary: int, rows: int) -> bool:
    """Deterministic mode's condition: a row's logits keep their bits when only what the other rows contain changes."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, vocabulary, (rows, 12))
    second = rng.permutation(rng.integers(0, vocabulary, (rows, 12)))
    kept = range(0, rows, max(2, rows // 4))  # never all rows
    for row in kept:
        second[row] = first[row]
    a, b = (_decoded(network, x) for x in (first, second))
    return all(np.array_equal(a[:, row], b[:, row]) for row in kept)


def _decoded(network: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits [2, B, V] of two decode steps behind a prefill of ``tokens`` [B, T]."""
    caches = fresh(network, len(tokens), padded=False)
    mx.eval(network(mx.array(tokens[:, :-2]), cache=caches))
    return np.stack([_numpy(network(mx.array(tokens[:, [at]]), cache=caches)[:, -1]) for at in (-2, -1)])


def missing_window(network: Any, config: dict[str, Any]) -> int | None:
    """The sliding window that a checkpoint's config asks for and its caches do not keep; None where all is well.

    A row longer than it gets other logits than the model was trained to give (Gemma 2 in mlx-lm).
    """
    text = config | (config.get("text_config") or {})
    window = text.get("sliding_window")
    if not isinstance(window, int) or text.get("use_sliding_window") is False:
        return None
    kept = any(hasattr(inner, "max_size") for cache in fresh(network, 1, padded=False) for inner in getattr(cache, "caches", [cache]))
    return None if kept else window
