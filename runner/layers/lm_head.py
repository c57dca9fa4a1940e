"""A network in two parts: its body, which makes hidden states of tokens, and its head, which makes logits of hidden states.

No [B, T, V] array comes to be: states of the positions asked for are picked, and logits made of a chunk of them at a time.
The split is found by names that mlx-lm's models share, and nothing here says that it is right: ``probes`` tries it out.
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
FAR = 1000.0
SAME = 1e-4  # of the largest logit: rounding is a hundredth of it
TEXT = "language_model"  # where a model of several modalities keeps its text model


class Head:
    """A network split behind its body. Both halves run the network's own code: scaling and caps of logits stay."""

    def __init__(self, network: Any):
        """Raises ValueError where no child has a body's name."""
        path = _body(network) if isinstance(network, nn.Module) else None
        if path is None:
            raise ValueError(f"no body among {', '.join(BODIES)} in {type(network).__name__}")
        self._network = network
        self._gate = _Gate(_at(network, path))
        self._twin: Any = _with(network, path, self._gate)
        self._bare: bool | None = None  # whether its logits are a product and nothing more, once that has been tried

    def states(self, tokens: mx.array, caches: Caches | None) -> mx.array:
        """The body's hidden states [B, T, H]; the logits of one position are named on the way and never computed."""
        self._twin(tokens, cache=caches)
        return self._gate.taken()

    def logits(self, states: mx.array) -> mx.array:
        """states [N, H] -> logits [N, V] by the network's own code behind the body."""
        return self._behind(states)[0]

    def product(self, states: mx.array) -> Product | None:
        """The product that the logits of states [N, H] are, where they are one and nothing more; nothing is computed."""
        if self._bare is None:
            self._bare = self._is_bare(states[:1])
        return self._named(states) if self._bare else None

    def _named(self, states: mx.array) -> Product | None:
        with context_of(self._network).listing() as listed:
            logits = self._behind(states)
        found = next((one.product for one in listed if one.array is logits), None)
        return None if found is None or found.x.ndim != 3 else replace(found, x=found.x[0])

    def _is_bare(self, state: mx.array) -> bool | None:
        """Whether the product named is the logits of a state [1, H] and of one far off; None where they are no numbers.

        An array that ``*=`` changes stays the same object, so it takes a trial; what caps logits leaves small ones as they are.
        """
        states = mx.concatenate([state, FAR * state])
        product = self._named(states)
        if product is None:
            return False
        own, plain = (
            np.array(logits.astype(mx.float32))
            for logits in (self.logits(states), linear.reference(product.x, product.weight, product.bias))
        )
        if not np.isfinite(plain).all():
            return None
        return bool((np.abs(own - plain).max(axis=-1) <= SAME * np.abs(plain).max(axis=-1)).all())

    def _behind(self, states: mx.array) -> mx.array:
        """Logits [1, N, V]."""
        self._gate.given = states[None]
        try:
            return self._twin(mx.zeros((1, states.shape[0]), dtype=mx.int32), cache=None)
        finally:
            self._gate.given = None


class _Gate:
    """Stands where the body stood: records what the true body makes of its input, or gives out hidden states."""

    def __init__(self, body: Any):
        self._body, self._made = body, None
        self.given: mx.array | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        if self.given is not None:
            return self.given
        made: mx.array = self._body(*args, **kwargs)
        self._made = made
        return made[:, :1]

    def __getattr__(self, name: str) -> Any:  # a tied head reads the body's embedding
        return getattr(self._body, name)

    def taken(self) -> mx.array:
        """What the body has made, once."""
        made, self._made = self._made, None
        assert made is not None, "the network did not call its body"
        return made


def _body(network: nn.Module) -> tuple[str, ...] | None:
    """The path of children that leads to the body."""
    inner = network.get(TEXT)
    if isinstance(inner, nn.Module) and (path := _body(inner)) is not None:
        return (TEXT, *path)
    return next(((name,) for name in BODIES if isinstance(network.get(name), nn.Module)), None)


def _at(network: nn.Module, path: tuple[str, ...]) -> nn.Module:
    for name in path:
        network = cast(nn.Module, network[name])
    return network


def _with(network: nn.Module, path: tuple[str, ...], gate: _Gate) -> nn.Module:
    """A twin of ``network`` that shares all its children but for the one at ``path``, where ``gate`` stands."""
    twin: Any = type(network).__new__(type(network))
    dict.update(twin, network)  # a module is a dict of its children and arrays
    twin.__dict__.update(network.__dict__)
    name, *rest = path
    if rest:
        twin[name] = _with(cast(nn.Module, network[name]), tuple(rest), gate)
    else:
        del twin[name]
        object.__setattr__(twin, name, gate)
    return twin
