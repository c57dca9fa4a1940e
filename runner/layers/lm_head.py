"""A network split in two: the body makes hidden states of tokens, the head makes logits of hidden states.

So no [B, T, V] array is needed: logits are made only of the positions that someone reads, a chunk at a time. The split goes by names
that mlx-lm's models share. Whether it is right for a model is for the checks to find out.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import mlx.core as mx
import numpy as np
from mlx import nn
from numpy.typing import NDArray

from ...kernels.fused_logprobs import Product
from ..patched_layers.call_context import context_of
from .kv_cache import Caches

BODIES = ("model", "backbone", "transformer")
ROUNDING = 1e-5  # by which a measured scale may miss 1
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
        self._form: _Form | Literal["other"] | None = None  # what the logits are, besides a product; None until tried

    def states(self, tokens: mx.array, caches: Caches | None) -> mx.array:
        """Returns the body's hidden states [B, T, H]. The head runs on one position, lazily, and is never computed."""
        self._twin(tokens, cache=caches)
        return self._gate.take()

    def logits(self, states: mx.array) -> mx.array:
        """Returns logits [N, V] of states [N, H], by the network's own code after the body."""
        return self._run_head(states)[0]

    def product(self, states: mx.array) -> Product | None:
        """Returns the product that equals the logits of states [N, H], not computed; None where the logits are more than a product.

        They may be scaled and capped.
        """
        if self._form is None:
            self._form = self._tried_form(states[:1])
        if self._form is None or self._form == "other":
            return None
        product = self._listed(states)
        return None if product is None else self._form.of(product)

    def _listed(self, states: mx.array) -> Product | None:
        with context_of(self._network).listing() as listed:
            logits = self._run_head(states)
        product = next((one.product for one in reversed(listed) if one.array.shape == logits.shape), None)
        return None if product is None or product.x.ndim != 3 else replace(product, x=product.x[0])

    def _tried_form(self, state: mx.array) -> "_Form | Literal['other'] | None":
        """Finds what the logits are besides a product, and tries it on a state [1, H] and on one far off; None where they are not finite.

        It takes a trial: an array changed by ``*=`` stays the same object. It takes a far state: a cap leaves small logits as they are.
        The scale and the cap are measured on states that are the same each time, so that a run's bits do not hang on its first row.
        """
        fixed = mx.array(np.random.default_rng(0).standard_normal(state.shape), state.dtype)
        states = mx.concatenate([fixed / FAR, FAR * fixed, state, FAR * state])
        product = self._listed(states)
        if product is None:
            return "other"
        own, plain = (np.array(logits.astype(mx.float32)) for logits in (self.logits(states), product.logits()))
        if not np.isfinite(plain).all():
            return None
        with np.errstate(invalid="ignore"):  # what is masked is -inf, and of no form
            for form in (_Form(), _Form.measured(own, plain)):
                right = np.array(form.of(product).logits().astype(mx.float32))
                if (np.abs(own - right).max(axis=-1) <= SAME * np.abs(right).max(axis=-1)).all():
                    return form
        return "other"

    def _run_head(self, states: mx.array) -> mx.array:
        """Returns logits [1, N, V] of states [N, H]."""
        self._gate.given = states[None]
        try:
            return self._twin(mx.zeros((1, states.shape[0]), dtype=mx.int32), cache=None)
        finally:
            self._gate.given = None


@dataclass(slots=True, frozen=True)
class _Form:
    """Logits that are a product times ``scale``, capped by ``cap`` where that is not 0."""

    scale: float = 1.0
    cap: float = 0.0

    @classmethod
    def measured(cls, own: NDArray[np.float32], plain: NDArray[np.float32]) -> "_Form":
        """Measures the form on logits [2, V] and their plain products: the first are small, where no cap shows, the second are large."""
        small, large = plain[:2].astype(np.float64)
        scale = float(own[0] @ small / max(float(small @ small), 1e-30))
        most = float(np.abs(own[1]).max())
        return cls(1.0 if abs(scale - 1) < ROUNDING else scale, most if most < abs(scale) * float(np.abs(large).max()) / 2 else 0.0)

    def of(self, product: Product) -> Product:
        """Returns the logits of this form of a plain product."""
        if self.scale == 1:
            return replace(product, cap=self.cap)
        if product.bias is None:
            return replace(product, x=self.scale * product.x, cap=self.cap)
        return Product(self.scale * product.x, product.weight, self.scale * product.bias, self.cap)  # the packed bias is not scaled


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


def body_of(network: nn.Module) -> nn.Module | None:
    """Returns a network's body, which makes hidden states of tokens; None where no child has a body's name."""
    path = _body(network)
    return None if path is None else _at(network, path)


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
