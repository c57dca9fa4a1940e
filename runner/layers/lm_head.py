"""A network split in two: the body makes hidden states of tokens, the head makes logits of hidden states.

So no [B, T, V] array is needed: logits are made only of the positions that someone reads, a chunk at a time. The split goes by names
that mlx-lm's models share. Whether it is right for a model is for the checks to find out.
"""

from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx import nn

from ...kernels import linear
from ...kernels.fused_logprobs import Product
from .call_context import context_of
from .kv_cache import Caches

BODIES = ("model", "backbone", "transformer")
FAR = 1000.0  # factor of a state that a cap of logits can't miss
SAME = 1e-4  # share of the largest logit; rounding is a hundredth of it
TEXT = "language_model"  # where a multimodal model keeps its text model


class Head:
    """A network split after its body. Both halves run the network's own code, so scaling and caps of logits stay."""

    def __init__(self, network: Any):
        """Splits a network. Raises ValueError where no child has a body's name."""
        path = _body(network) if isinstance(network, nn.Module) else None
        if path is None:
            raise ValueError(f"no body among {', '.join(BODIES)} in {type(network).__name__}")
        self._network = network
        self._gate = _Gate(_at(network, path))
        self._twin: Any = _twin_with(network, path, self._gate)
        self._bare: bool | None = None  # True when the logits are a product and nothing more; None until tried

    def states(self, tokens: mx.array, caches: Caches | None) -> mx.array:
        """Returns the body's hidden states [B, T, H]. The head runs on one position, lazily, and is never computed."""
        self._twin(tokens, cache=caches)
        return self._gate.take()

    def logits(self, states: mx.array) -> mx.array:
        """Returns logits [N, V] of states [N, H], by the network's own code after the body."""
        return self._run_head(states)[0]

    def product(self, states: mx.array) -> Product | None:
        """Returns the product that equals the logits of states [N, H], not computed; None where the logits are more than a product."""
        if self._bare is None:
            self._bare = self._is_bare(states[:1])
        return self._listed(states) if self._bare else None

    def _listed(self, states: mx.array) -> Product | None:
        with context_of(self._network).listing() as listed:
            logits = self._run_head(states)
        product = next((one.product for one in listed if one.array is logits), None)
        return None if product is None or product.x.ndim != 3 else replace(product, x=product.x[0])

    def _is_bare(self, state: mx.array) -> bool | None:
        """Returns True when the product equals the logits of a state [1, H] and of one far off; None where they are not finite.

        It takes a trial: an array changed by ``*=`` stays the same object. It takes a far state: a cap leaves small logits as they are.
        """
        states = mx.concatenate([state, FAR * state])
        product = self._listed(states)
        if product is None:
            return False
        own, plain = (
            np.array(logits.astype(mx.float32))
            for logits in (self.logits(states), linear.reference(product.x, product.weight, product.bias))
        )
        if not np.isfinite(plain).all():
            return None
        return bool((np.abs(own - plain).max(axis=-1) <= SAME * np.abs(plain).max(axis=-1)).all())

    def _run_head(self, states: mx.array) -> mx.array:
        """Returns logits [1, N, V] of states [N, H]."""
        self._gate.given = states[None]
        try:
            return self._twin(mx.zeros((1, states.shape[0]), dtype=mx.int32), cache=None)
        finally:
            self._gate.given = None


class _Gate:
    """Takes the body's place: keeps the states that the body makes of its input, or returns given ones."""

    def __init__(self, body: Any):
        self._body, self._states = body, None
        self.given: mx.array | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        if self.given is not None:
            return self.given
        states: mx.array = self._body(*args, **kwargs)
        self._states = states
        return states[:, :1]

    def __getattr__(self, name: str) -> Any:  # a tied head reads the body's embedding
        return getattr(self._body, name)

    def take(self) -> mx.array:
        """Returns the states of the last call, once."""
        states, self._states = self._states, None
        assert states is not None, "the network did not call its body"
        return states


def _body(network: nn.Module) -> tuple[str, ...] | None:
    """Returns the path of children that leads to the body, or None."""
    inner = network.get(TEXT)
    if isinstance(inner, nn.Module) and (path := _body(inner)) is not None:
        return (TEXT, *path)
    return next(((name,) for name in BODIES if isinstance(network.get(name), nn.Module)), None)


def _at(network: nn.Module, path: tuple[str, ...]) -> nn.Module:
    for name in path:
        network = cast(nn.Module, network[name])
    return network


def _twin_with(network: nn.Module, path: tuple[str, ...], gate: _Gate) -> nn.Module:
    """Returns a twin of ``network`` that shares all children, except that ``gate`` replaces the one at ``path``."""
    twin: Any = type(network).__new__(type(network))
    dict.update(twin, network)  # a module is a dict of its children and arrays
    twin.__dict__.update(network.__dict__)
    name, *rest = path
    if rest:
        twin[name] = _twin_with(cast(nn.Module, network[name]), tuple(rest), gate)
    else:
        del twin[name]
        object.__setattr__(twin, name, gate)
    return twin
