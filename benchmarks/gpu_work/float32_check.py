"""Holds outputs in bfloat16 to the same network in float32, on some rows: what differs more than bfloat16 explains is wrong.

The rule. mlx-lm's own forward pass over one row alone, in the model's type, is off from float32 by its rounding: that is the noise,
measured on the same tokens. A row's logprobs may be off by ``ROW`` times the noise (root mean square), and one of them by ``ONE`` times
the noise's largest. A greedy token may be less likely than the most likely one by no more than rounding moves two logits apart: twice
the widest spread of the noise over the vocabulary. Drawn tokens without logprobs are compared with ours as a crowd: by their mean
logprob, within six standard errors. ``FLOOR``: of all bounds, as where the model's type is float32 there is no noise.

In float32 go one row at a time and one layer at a time, without a cache or a batch: no part of the engine takes part. Weights of 4 bits
are the same ones: what they are multiplied with is float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from networks.random_models import mx
from racing.agreement import DEVIATIONS, DisagreementError

import numpy as np
from mlx.utils import tree_map
from numpy.typing import NDArray

ROW, ONE, SPREAD = 3.0, 4.0, 2.0
FLOOR = 1e-3  # natural-log units
Logits = NDArray[np.float32]


@dataclass(slots=True)
class Row:
    """Token ids of a text, of which those from ``start`` on are judged; ``logprobs``: what a peer says of these, None for ids alone."""

    ids: list[int]
    start: int
    logprobs: list[float] | None = None


@dataclass(slots=True, frozen=True)
class _Judged:
    """A row in float32 and in the model's type: [N, V] of the judged tokens' logits, less their logsumexp."""

    ids: NDArray[np.intp]
    exact: Logits
    rounded: Logits

    @property
    def chosen(self) -> Logits:
        """The tokens' logprobs in float32."""
        return self.exact[np.arange(len(self.ids)), self.ids]

    @property
    def noise(self) -> Logits:
        """Of these, by the model's type."""
        return self.rounded[np.arange(len(self.ids)), self.ids] - self.chosen


def checked(peers: dict[str, list[Row]], network: Any, greedy: bool) -> dict[str, Any]:
    """The noise, and how far each peer's rows are from float32. Raises DisagreementError, with these figures as its second argument."""
    judged = {peer: [_judge(network, row) for row in rows] for peer, rows in peers.items()}
    bounds, found = _bounds([one for rows in judged.values() for one in rows])
    wrong: list[str] = []
    for peer, rows in peers.items():
        own = found[peer] = dict[str, float]()
        apart = [np.array(row.logprobs) - one.chosen for row, one in zip(rows, judged[peer], strict=True) if row.logprobs is not None]
        if apart:
            own |= _figures(np.concatenate(apart))
            row, one = max(map(_size, apart)), np.abs(np.concatenate(apart)).max()
            wrong += [f"{peer}: a row's logprobs are off by {row:.2g}"] * (not row <= bounds["row"])
            wrong += [f"{peer}: a logprob is off by {one:.2g}"] * (not one <= bounds["one"])
        if greedy:
            gap = max(float((one.exact.max(axis=-1) - one.chosen).max()) for one in judged[peer])
            own["gap"] = _short(gap)
            wrong += [f"{peer}: a greedy token is less likely than another by {gap:.2g}"] * (not gap <= bounds["gap"])
        elif not apart:
            wrong += _crowd(peer, *(np.concatenate([one.chosen for one in judged[side]]) for side in (next(iter(peers)), peer)))
    if wrong:
        told = ", ".join(f"{name} {_short(bound)}" for name, bound in bounds.items())
        raise DisagreementError(f"{'; '.join(wrong)}; bfloat16 explains {told}", found)
    return found


def _bounds(every: list[_Judged]) -> tuple[dict[str, float], dict[str, Any]]:
    """What bfloat16 explains, and the figures that say so."""
    noise = np.concatenate([one.noise for one in every])
    spread = max(float(np.ptp(one.rounded - one.exact, axis=-1).max()) for one in every)
    wide = {"row": ROW * _size(noise), "one": ONE * float(np.abs(noise).max()), "gap": SPREAD * spread}
    bounds = {name: max(FLOOR, bound) for name, bound in wide.items()}
    return bounds, {"noise": _figures(noise), "bounds": {name: _short(bound) for name, bound in bounds.items()}}


def _crowd(peer: str, ours: Logits, theirs: Logits) -> list[str]:
    """What is wrong with the mean of drawn tokens' logprobs: each library has random numbers of its own."""
    apart = float(theirs.mean() - ours.mean())
    error = float((ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs)) ** 0.5)
    return [f"{peer}: its draws' mean logprob is off by {apart:.2g}, the standard error is {error:.2g}"] * (
        not abs(apart) <= DEVIATIONS * error
    )


def _judge(network: Any, row: Row) -> _Judged:
    at = slice(row.start - 1, len(row.ids) - 1)
    both = [_normalized(logits[0, at]) for logits in (in_float32(network, row.ids[:-1]), network(mx.array([row.ids[:-1]])))]
    return _Judged(np.array(row.ids[row.start :]), *both)


def _normalized(logits: Any) -> Logits:
    logits = logits.astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def in_float32(network: Any, ids: list[int]) -> Any:
    """Logits [1, T, V] of a network of mlx-lm whose body is ``model``, with a tied or untied head, all in float32."""
    body = network.model
    with _widened(body.embed_tokens):
        h = body.embed_tokens(mx.array([ids])).astype(mx.float32)
        mx.eval(h)
    for layer in body.layers:
        with _widened(layer):
            h = layer(h, "causal", None)
            mx.eval(h)
    with _widened(body.norm):
        h = body.norm(h)
        mx.eval(h)
    head = getattr(network, "lm_head", None)
    with _widened(head or body.embed_tokens):
        logits = head(h) if head else body.embed_tokens.as_linear(h)
        mx.eval(logits)
    return logits


@contextmanager
def _widened(module: Any) -> Iterator[None]:
    """The module's floats are float32 inside the block."""
    held = module.parameters()
    module.update(tree_map(lambda value: value.astype(mx.float32) if mx.issubdtype(value.dtype, mx.floating) else value, held))
    try:
        yield
    finally:
        module.update(held)


def _size(values: NDArray[np.float32]) -> float:
    """The root of the mean square; NaN where one is."""
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))


def _figures(values: NDArray[np.float32]) -> dict[str, float]:
    return {"rms": _short(_size(values)), "largest": _short(float(np.abs(values).max()))}


def _short(value: float) -> float:
    return float(f"{value:.3g}")
