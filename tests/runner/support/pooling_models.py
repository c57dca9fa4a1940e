"""A pooling model that can be stated in a line of NumPy, and requests for it; a device with little memory, and one that rounds by slot."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_bulk.runner.core.arrays import Floats, Ids
from mlx_bulk.runner.core.logprob_options import LogprobOptions
from mlx_bulk.runner.core.outcomes import Failure, Outcome, Pooled
from mlx_bulk.runner.core.requests import PoolRequest, TokenInput
from mlx_bulk.runner.engine.setup import BatchFeatures, Setup
from mlx_bulk.runner.pool_engine.pooler import Pooler
from mlx_bulk.runner.pooling.decoder_body import DecoderBody
from mlx_bulk.runner.pooling.head_network import head_network
from mlx_bulk.runner.pooling.spec import EmbeddingHead, PoolingSpec
from mlx_bulk.runner.pooling.vectors import PoolingNetwork
from mlx_bulk.runner.scheduler.limits import Limits

from .small_memory import MESSAGE
from .tiny import CONFIGS, VOCABULARY, build

DIMENSIONS = 6
SPEC = PoolingSpec(EmbeddingHead(("mean",)), DIMENSIONS)
TABLE = np.random.default_rng(7).normal(size=(VOCABULARY, DIMENSIONS))

Refuses = Callable[[int, int], bool]  # rows and tokens of a call


class WordTable:
    """A vector is the sum of a table's lines for the tokens that count, each by its place, and of the token types.

    Notes the shapes [rows, width] of its calls; ``refuses`` says which do not fit the device. ``bad`` ids give NaN.
    """

    def __init__(self, refuses: Refuses = lambda rows, width: False, dtype: mx.Dtype = mx.float32, bad: int = -1):
        self.refuses, self.bad = refuses, bad
        self.table = mx.array(TABLE.astype(np.float32)).astype(dtype)
        self.calls: list[tuple[int, int]] = []
        self.refused: list[tuple[int, int]] = []

    def parameters(self) -> dict[str, mx.array]:
        return {"table": self.table}

    def __call__(
        self, tokens: mx.array | Ids, lengths: Sequence[int], starts: Sequence[int] | None = None, types: mx.array | None = None
    ) -> mx.array:
        tokens = mx.array(tokens)
        rows, width = tokens.shape
        self.calls.append((rows, width))
        if self.refuses(rows, width):
            self.refused.append((rows, width))
            raise RuntimeError(MESSAGE)
        at = mx.arange(width)[None]
        counted = (at >= mx.array(list(starts or [0] * rows))[:, None]) & (at < mx.array(list(lengths))[:, None])
        states = self.table[tokens].astype(mx.float32) * (1 + at[..., None])
        states = mx.where((tokens == self.bad)[..., None], mx.nan, states)
        if types is not None:
            states = states + types[..., None]
        return mx.where(counted[..., None], states, 0.0).sum(axis=1)


def truth(each: TokenInput) -> Floats:
    """The vector [D] of one input, in float64."""
    at = np.arange(each.start, len(each.ids))
    types = np.zeros(len(each.ids)) if each.types is None else each.types
    return (TABLE[each.ids[at]] * (1 + at[:, None]) + types[at, None]).sum(axis=0)


def text(ids: Sequence[int], start: int = 0, types: Sequence[int] | None = None) -> TokenInput:
    return TokenInput(np.array(ids, np.int32), None if types is None else np.array(types, np.int32), start)


def texts_of(lengths: Sequence[int], seed: int = 0) -> list[TokenInput]:
    rng = np.random.default_rng(seed)
    return [text(rng.integers(0, VOCABULARY, n).tolist()) for n in lengths]


def one_each(inputs: Sequence[TokenInput]) -> list[PoolRequest]:
    """A request of one text for each."""
    return [PoolRequest(row, (each,)) for row, each in enumerate(inputs)]


def pooling_setup_of(network: Any, rows: int = 4, tokens: int = 64, static: bool = False, **limits: Any) -> Setup:
    """A setup in which the checks have found all that ``limits`` do not say otherwise."""
    held = Limits(rows, tokens, limits.pop("room", 1e12), 1.0, 0.0, **limits)
    features = BatchFeatures(padded=not held.equal_lengths, right_padded=not held.equal_lengths)
    return Setup(network, VOCABULARY, held, LogprobOptions(), features, static=static, dimensions=DIMENSIONS)


def pool_windows(setup: Setup, *windows: Sequence[PoolRequest]) -> tuple[list[Outcome], Pooler]:
    """The outcomes of all windows in the order in which they come, and the engine."""
    pooler, rest = Pooler(setup), iter([list(window) for window in windows])
    return list(pooler.run(lambda wait: next(rest, None))), pooler


def assert_true_vectors(requests: Sequence[PoolRequest], outcomes: Sequence[Outcome]) -> None:
    """Each request has come out once, with the vectors of its inputs in their order. Sums of float32: 1e-5 of the largest number."""
    done = sorted((o for o in outcomes if isinstance(o, Pooled)), key=lambda o: o.row)
    assert [o.row for o in done] == [r.row for r in requests], [o for o in outcomes if isinstance(o, Failure)]
    for outcome, request in zip(done, requests, strict=True):
        right = np.array([truth(each) for each in request.inputs]).reshape(-1, DIMENSIONS)
        assert outcome.values.shape == right.shape
        assert outcome.values.dtype == np.float32
        np.testing.assert_allclose(outcome.values, right, atol=1e-5 * max(1.0, float(np.abs(right).max(initial=0))))


def tiny_embedder(name: str = "llama", mode: Any = "mean") -> PoolingNetwork:
    """A tiny decoder whose states are pooled."""
    body = DecoderBody(build(name), CONFIGS[name] | {"model_type": name})
    return PoolingNetwork(body, head_network(PoolingSpec(EmbeddingHead((mode,), normalize=True), 64), body))
