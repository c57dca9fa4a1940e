"""Times decode steps that never wait for the host: they are built in advance.

    host    build build build … eval ─────────────────► read
    device                      step step step step …

The engine's steps need the same time on the device; what they take longer on the clock, the device waited. They are timed in two ways,
and the faster one counts. Sent as one evaluation, nothing stands between two steps; but mlx then copies the KV caches, as it writes into
them in place only when no step that reads them is under way. Sent one by one, none is copied, and each waits for its own sending. Caches
that the engine has never copied are not sent together: that could take more memory than there is.
"""

import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from networks.random_models import mx
from peers.completing import Completing

import numpy as np
from mlx_bulk.kernels import logprobs
from mlx_bulk.kernels.sampling import draw
from mlx_bulk.kernels.sampling.parameters import Parameters
from mlx_bulk.runner.engine.decode_batch import COPIED_BYTES
from mlx_bulk.runner.engine.setup import Setup
from mlx_bulk.runner.layers.kv_cache import evaluate_caches, make_caches

STEPS = 16
TRIES = 3


def queued(setup: Setup, given: Completing, keys: int, vocabulary: int, rows: int) -> dict[str, float]:
    """Seconds of one step of ``rows`` rows with about ``keys`` cached tokens each: on the device, and to build it on the host."""
    copied = setup.limits.kv(rows, keys) <= COPIED_BYTES
    ways = [bursts(setup, given, max(1, keys - STEPS), vocabulary, rows, together) for together in {copied, False}]
    device, build = zip(*chain.from_iterable(islice(way, TRIES) for way in ways), strict=True)
    return {"device": min(device) / STEPS, "build": min(build) / STEPS}


def bursts(setup: Setup, given: Completing, keys: int, vocabulary: int, rows: int, together: bool) -> Iterator[tuple[float, float]]:
    """Seconds of ``STEPS`` steps on the device, and to build them; then of the next ones. ``keys``: cached tokens before the first.

    together: as one evaluation.
    """
    caches = _filled(setup, keys, rows, vocabulary)
    step = _step(setup, caches, _parameters(given, rows))
    ids = mx.zeros((rows,), mx.int32)
    while True:
        mx.eval(ids)
        evaluate_caches(caches)
        mx.synchronize()
        began = time.perf_counter()
        steps = [ids := step(ids) for _ in range(STEPS)]
        built = time.perf_counter()
        for one in steps[-1:] if together else steps:
            mx.eval(one)
        mx.synchronize()
        yield time.perf_counter() - built, built - began


def _filled(setup: Setup, keys: int, rows: int, vocabulary: int) -> Any:
    """Caches of so many random tokens a row, all of one length: the widest that the engine's rows have."""
    kv = getattr(setup, "kv", None)
    caches = make_caches(setup.model, rows, setup.features.padded, **({} if kv is None else {"kv": kv}))
    ids = np.random.default_rng(3).integers(0, vocabulary, (rows, keys))
    width = max(2, setup.limits.tokens // rows)
    for at in range(0, keys, width):
        setup.network(mx.array(ids[:, at : at + width]), caches, read="nothing")
        evaluate_caches(caches)
    return caches


def _step(setup: Setup, caches: Any, parameters: Parameters) -> Callable[[Any], Any]:
    """The next ids of the last ids [B], unevaluated. They wait for the step's logprobs, so that no step's logits outlive it."""

    def taken(ids: Any) -> Any:
        logits = setup.network(ids[:, None], caches)[:, -1]
        new, sampled, *_ = draw.reference(logits, parameters)
        figures = logprobs.reference(logits, new, setup.wanted.top, setup.wanted.stats)
        return mx.depends([new], [sampled, *(figure for figure in figures if figure is not None)])[0]

    return taken


def _parameters(given: Completing, rows: int) -> Parameters:
    def all_are(value: float) -> Any:
        return np.full(rows, value, np.float32)

    return Parameters(
        temperature=all_are(given.temperature),
        top_k=np.zeros(rows, np.int32),
        top_p=all_are(given.top_p),
        min_p=all_are(0),
        repetition=all_are(1),
        presence=all_are(0),
        frequency=all_are(0),
        uniforms=all_are(0.5),
    )
