"""Tests on a model's own weights how rows may share a batch, from the fastest way to the most cautious.

    padded    rows of unlike length are prefilled together, with pads, and decode together
    joined    rows of one length are prefilled together; rows of unlike length decode together
    exact     rows of one length are prefilled and decode together
    alone     one row at a time

Short rows go through a batch as the engine runs it (prefill, a row that joins, decode), and each alone. Where the logits differ, or the
batch crashes, the next way is tried. Knows models, not their names, and not what longer rows would show.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from ..caches.row_positions import RowPositions
from ..core.errors import first_line
from ..core.kv_quantization import KVQuantization
from ..layers.cache_bytes import growth
from ..layers.kv_cache import (
    Caches,
    finish_padding,
    join_caches,
    kept_inside,
    make_caches,
    needs_no_caches,
    prepare_padding,
    select,
)
from ..layers.network import Network
from ..quantized_kv.quantized_caches import PlainQuantizedKVCache
from .trial import largest_gap, random_ids, row_logits

Way = Literal["padded", "joined", "exact", "alone"]
Decoded = tuple[int, int, NDArray[np.float32]]  # a row's number, its step, its logits [V]
WAYS: tuple[Way, ...] = ("padded", "joined", "exact", "alone")  # the fastest first
PADDED: tuple[Way, ...] = ("padded", "joined")  # those in which rows of unlike length decode together
LENGTHS = (12, 5, 8, 12)  # of the probe's prompts; the third joins while two others decode
STEPS = 2
# The largest difference allowed is four times what a row differs by in a batch of copies of it. It is at least the promise for
# float32, or four roundings of the largest logit in half precision. It is at most a share of the logits' spread, as a device's noise
# may be large: a pad that is attended to moves logits by a tenth of their spread.
NOISE = 4
COPIES, MANY = 3, 6  # rows of such a batch: fed in one call, and by steps (products of up to four rows may sum in an order of their own)
PROMISE = 1e-4  # a logprob, in float32
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # relative
KV_CHANGE, KV_NOISE = 0.25, 0.05  # of the logits' spread: what eight bits may change, and rounding between two codes
SPREAD = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 1.5e-1}


@dataclass(slots=True, frozen=True)
class BatchingMode:
    """How rows may share a batch, and what the probe has measured.

    difference: the largest of a logit seen in this way, of those ``allowed``. token_bytes, row_bytes: what a row's caches take, for each
    token and besides. reason: why the faster ways are not taken.
    """

    way: Way
    difference: float
    token_bytes: float
    row_bytes: float
    reason: str = ""
    allowed: float = PROMISE


def probe(network: Any, vocabulary: int, fastest: Way = "padded") -> BatchingMode:
    """Finds the fastest way, from ``fastest`` on, with the same logits as each row alone, in one call or decoded."""
    alone = _ProbeRows(network, _prompts(vocabulary))
    token_bytes, row_bytes = growth(alone.caches)
    allowed, reason = alone.allowed(0.0), ""
    for way in WAYS[WAYS.index(fastest) : -1]:
        try:
            decoded = list(TRIED[way](network, alone.prompts))
        except Exception as error:  # a probe that crashes is a probe that failed
            reason = fallback_reason(way, reason, crash_reason(f"{way} batches", error))
            continue
        difference = _furthest(decoded, alone.at_once)
        if not difference <= allowed:
            allowed, difference = alone.allowed(alone.noise()), min(difference, _furthest(decoded, alone.by_steps))
        if difference <= allowed:
            return BatchingMode(way, difference, token_bytes, row_bytes, reason, allowed)
        reason = fallback_reason(way, reason, f"{way} batches change logits by {difference:.2g} (allowed {allowed:.2g})")
    return BatchingMode("alone", 0.0, token_bytes, row_bytes, reason, allowed)


def fallback_reason(way: Way, before: str, reason: str) -> str:
    """Returns why a more cautious way than ``way`` is taken. A fault of padded batches says more than one of joined batches."""
    return before if before and way == "joined" else reason


def crash_reason(what: str, error: Exception) -> str:
    """Returns the reason not to rely on ``what``, which crashed."""
    return f"{what} crash: {first_line(error)}"


def allowed_difference(network: Any, vocabulary: int, noise: float = 0.0) -> float:
    """Returns how far logits may differ between two ways to compute them, on a network known to have so much ``noise``."""
    alone = _ProbeRows(network, _prompts(vocabulary))
    return alone.allowed(max(noise, alone.noise()))


def _prompts(vocabulary: int) -> list[NDArray[np.int32]]:
    return random_ids(np.random.default_rng(0), vocabulary, LENGTHS)


def cache_bytes(network: Any, kv: KVQuantization | None) -> tuple[float, float]:
    """Returns the bytes of a row's caches, a token and besides, from the shapes that a prompt would leave; it is not computed."""
    caches = make_caches(network, 1, padded=False, kv=kv)
    Network(network)(mx.array([[0] * LENGTHS[0]]), caches, read="nothing")
    return growth(caches)


def kv_account(network: Any, kv: KVQuantization) -> str:
    """Says in how many of a network's caches, if not in all, and what it costs on a CPU."""
    caches = [cache for cache in kept_inside(make_caches(network, 1, padded=False, kv=kv)) if not isinstance(cache, RowPositions)]
    kinds = [isinstance(cache, PlainQuantizedKVCache) for cache in caches]
    some = "" if all(kinds) else f", in {sum(kinds)} of {len(kinds)} layers' caches"
    slower = ", slower on this CPU: its kernel of whole blocks reads no quantized keys" if needs_no_caches(network) else ""
    return some + slower


def kv_obstacle(network: Any, kv: KVQuantization) -> str:
    """Returns why a network's keys and values cannot be quantized, as far as shapes show; empty where they can. Computes nothing."""
    caches, few = (make_caches(network, 1, padded=False, kv=each) for each in (None, kv))
    ids = mx.array([[0] * LENGTHS[0]])
    Network(network)(ids, caches, read="nothing")
    pairs = zip(kept_inside(caches), kept_inside(few), strict=True)
    held = [x for cache, one in pairs if isinstance(one, PlainQuantizedKVCache) for x in (cache.keys, cache.values) if x is not None]
    if not held:
        return "none of its layers keeps keys and values of all tokens; set batch.kv_bits to null"
    widths = {x.shape[-1] for x in held}
    if odd := sorted(width for width in widths if width % kv.group or not width):
        fits = [group for group in (32, 64, 128) if not any(width % group for width in widths)]
        cure = f"set batch.kv_group to {fits[-1]}, or batch.kv_bits to null" if fits and 0 not in odd else "set batch.kv_bits to null"
        return f"its heads of {odd[0]} numbers do not divide into groups of {kv.group}; {cure}"
    try:
        for width in (LENGTHS[0], 1):  # a prefill and a decode step
            Network(network)(ids[:, :width], few, read="nothing")
    except Exception as error:  # a model file may fail in any way
        return f"its attention takes no quantized keys ({first_line(error)}); set batch.kv_bits to null"
    return ""


def kv_refusal(network: Any, vocabulary: int, way: Way, kv: KVQuantization) -> str:
    """Returns why keys and values must not be quantized, after a trial on the model's own weights; empty where they may.

    In eight bits logits stay near those of whole numbers, and a row in a batch is nearly as it is alone: a number between two codes can
    get the one or the other. What few bits cost beyond that is not judged: that is what was asked for.
    """
    if obstacle := kv_obstacle(network, kv):
        return obstacle
    prompts, eight = _prompts(vocabulary), replace(kv, bits=8, start=min(kv.start, LENGTHS[1] // 2))
    try:
        whole, few = ([_numpy(row_logits(network, ids, kv=each)[-STEPS:]) for ids in prompts] for each in (None, eight))
        steps = [_numpy(row_logits(network, ids, range(len(ids) - STEPS, len(ids)), kv=eight)[-STEPS:]) for ids in prompts]
        decoded = list(TRIED[way](network, prompts, eight)) if way in TRIED else []
        if kv != eight:
            mx.eval(row_logits(network, prompts[0], [len(prompts[0]) - 1], kv=kv))
    except Exception as error:  # a model file may fail in any way
        return f"its attention takes no quantized keys ({first_line(error)}); set batch.kv_bits to null"
    spread = max(float(np.concatenate([x[~np.isneginf(x)] for x in whole]).std()), 1e-3)
    gaps = [_difference(a, b) for mine, theirs in zip(few, whole, strict=True) for a, b in zip(mine, theirs, strict=True)]
    changed = float(np.median(gaps)) / spread  # a token that goes to another expert changes more, and is no fault
    moved = (
        max((min(_difference(logits, truth[row][step]) for truth in (few, steps)) for row, step, logits in decoded), default=0.0) / spread
    )
    if not changed <= KV_CHANGE:
        return f"eight bits change its logits by {changed:.2g} of their spread (allowed {KV_CHANGE}); set batch.kv_bits to null"
    if not moved <= KV_NOISE:
        return f"in batches its logits move by {moved:.2g} of their spread (allowed {KV_NOISE}); set batch.kv_bits to null"
    return ""


class _ProbeRows:
    """The probe's prompts run alone on plain caches: their logits [STEPS, V] at the last positions, and the difference allowed.

    ``caches`` are what the first prompt leaves.
    """

    def __init__(self, network: Any, prompts: list[NDArray[np.int32]]):
        self.prompts, self._network = prompts, network
        self.caches = make_caches(network, 1, padded=False)
        first = row_logits(network, prompts[0], caches=self.caches)[-STEPS:]
        self._precision = str(first.dtype).removeprefix("mlx.core.")
        self._at_once = {0: _numpy(first)}

    def at_once(self, row: int) -> NDArray[np.float32]:
        """Returns the logits of a prompt fed in one call."""
        if row not in self._at_once:
            self._at_once[row] = _numpy(row_logits(self._network, self.prompts[row])[-STEPS:])
        return self._at_once[row]

    def by_steps(self, row: int) -> NDArray[np.float32]:
        """Returns the logits of a prompt whose last tokens are fed one by one."""
        ids = self.prompts[row]
        return _numpy(row_logits(self._network, ids, range(len(ids) - STEPS, len(ids)))[-STEPS:])

    def allowed(self, noise: float) -> float:
        """Returns how far logits may be off on a device with so much ``noise``."""
        logits = np.concatenate([self.at_once(row) for row in range(3)])
        logits = logits[~np.isneginf(logits)]  # of a token that cannot be: none to measure by
        precision = self._precision
        least = NOISE * ROUNDING[precision] * float(np.abs(logits).max()) if precision in ROUNDING else PROMISE
        most = SPREAD[precision] * max(float(logits.std()), 1e-3)
        return min(most, max(least, NOISE * noise))  # NaN, which allows nothing, where one of the logits is

    def noise(self) -> float:
        """Returns how far logits of a prompt are from those in a batch of copies of it: rounding alone, as nothing else can enter.

        The copies are fed in one call, and with the last tokens one by one. 0 where the network takes one row only.
        """
        try:
            pairs = [(self._copies(0, COPIES, []), self.at_once(0))]
            for row, ids in enumerate(self.prompts[:3]):
                pairs.append((self._copies(row, MANY, range(len(ids) - STEPS, len(ids))), self.by_steps(row)))
        except Exception:  # a model file may fail in any way
            return 0.0
        return max(_difference(*pair) for rows, alone in pairs for row in rows for pair in zip(row, alone, strict=True))

    def _copies(self, row: int, copies: int, cuts: Sequence[int]) -> NDArray[np.float32]:
        """Returns the last logits [copies, STEPS, V] of copies of a prompt, fed in calls that end before the positions ``cuts``."""
        caches = make_caches(self._network, copies, padded=False)
        parts = [part for part in np.split(np.tile(self.prompts[row], (copies, 1)), cuts, axis=1) if part.size]
        logits = [Network(self._network)(mx.array(part), caches) for part in parts]
        return _numpy(mx.concatenate(logits, axis=1)[:, -STEPS:])


def _padded(network: Any, prompts: list[NDArray[np.int32]], kv: KVQuantization | None = None) -> Iterator[Decoded]:
    """Prefills two rows together, right-padded; a third joins; all decode."""
    caches = join_caches([_prefilled(network, prompts[:2], kv), _prefilled(network, prompts[2:3], kv)])
    return _decoded(network, prompts, caches, [0, 1, 2], padded=True)


def _joined(network: Any, prompts: list[NDArray[np.int32]], kv: KVQuantization | None = None) -> Iterator[Decoded]:
    """Prefills three rows each by itself, and decodes them together."""
    return _decoded(network, prompts, join_caches([_prefilled(network, [prompt], kv) for prompt in prompts[:3]]), [0, 1, 2], padded=True)


def _prefilled(network: Any, prompts: list[NDArray[np.int32]], kv: KVQuantization | None) -> Caches:
    lengths = [len(x) - STEPS for x in prompts]
    width = max(lengths)
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, x, n in zip(tokens, prompts, lengths, strict=True):
        row[:n] = x[:n]
    caches = make_caches(network, len(prompts), padded=True, kv=kv)
    prepare_padding(caches, lengths, width)
    mx.eval(Network(network)(mx.array(tokens), caches, lengths=lengths))
    if min(lengths) < width:
        finish_padding(caches)
    return caches


def _exact(network: Any, prompts: list[NDArray[np.int32]], kv: KVQuantization | None = None) -> Iterator[Decoded]:
    """Decodes two rows of one length on plain caches."""
    caches = make_caches(network, 2, padded=False, kv=kv)
    mx.eval(Network(network)(mx.array(np.stack([prompts[0], prompts[3]])[:, :-STEPS]), caches))
    return _decoded(network, prompts, caches, [0, 3], padded=False)


TRIED = {"padded": _padded, "joined": _joined, "exact": _exact}


def _decoded(network: Any, prompts: list[NDArray[np.int32]], caches: Caches, order: list[int], padded: bool) -> Iterator[Decoded]:
    """Decodes the last tokens of the rows ``order``; the first row leaves before the last step."""
    for step in range(STEPS):
        logits = _numpy(Network(network)(mx.array([[int(prompts[row][step - STEPS])] for row in order]), caches)[:, -1])
        yield from ((row, step, logits[at]) for at, row in enumerate(order))
        if step == STEPS - 2:
            select(caches, list(range(1, len(order))), len(order), padded)
            order = order[1:]


def _furthest(decoded: list[Decoded], truth: Callable[[int], NDArray[np.float32]]) -> float:
    return max(_difference(logits, truth(row)[step]) for row, step, logits in decoded)


def _difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Returns the largest difference of two rows of logits, up to a constant; infinite for NaN, or -inf in one alone."""
    never = np.isneginf(a)
    if not np.array_equal(never, np.isneginf(b)):
        return float("inf")
    a, b = a[~never], b[~never]
    return largest_gap(a - a.mean(), b - b.mean())


def _numpy(logits: mx.array) -> NDArray[np.float32]:
    return np.array(logits.astype(mx.float32))
