"""Reads a checkpoint's body into mlx-lm's network: one without an LM head, with a classifier's head, or saved as a bare ``AutoModel``.

mlx-lm reads language models alone, and makes an LM head for each: 2 GB for an 8B. Here its place is taken by a stand-in without weights.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn

from ..core.errors import ModelError
from ..layers.lm_head import TEXT
from ..vision.text_networks import text_weights
from .weights_compat import Weights, mlx_lm_classes

LM_HEADS = ("lm_head", "output", "embed_out")  # as mlx-lm's model files name them
INNER_HEAD = "embed_out"  # GPT-NeoX's, in mlx-lm a part of the body
# The first part of the names of other heads' weights; a classifier reads its own.
OTHER_HEADS = {"score", "classifier", "v_head", "value_head", "reward_head", "regression_layer", "gating", "qa_outputs", "rank_head"}
BODY = "model"


def body_classes(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """Returns what mlx-lm's ``load_model`` makes a network and its arguments of; the network takes a checkpoint's body alone."""
    network_of, arguments_class = mlx_lm_classes(config)

    def body_of(arguments: Any) -> Any:
        network = network_of(arguments)
        before = network.__dict__.pop("sanitize", None)

        def sanitize(weights: Weights) -> Weights:
            object.__delattr__(network, "sanitize")
            if before is not None:
                object.__setattr__(network, "sanitize", before)
            weights = body_weights(weights, set(network.children()))
            own = getattr(network, "sanitize", None)
            weights = weights if own is None else own(weights)
            _leave_out_heads(network, weights)
            return weights

        object.__setattr__(network, "sanitize", sanitize)  # not among a module's parameters
        return network

    return body_of, arguments_class


def body_weights(weights: Weights, children: set[str]) -> Weights:
    """Returns the weights without heads, under the names of a network with these ``children``.

    Raises ModelError for an embedder whose dense layers a conversion has put among them: nothing says how they are applied.
    """
    if dense := sorted(name for name in weights if name.split(".")[0] == "dense"):
        found = f"its weights hold {dense[0]}, a layer that sentence-transformers keeps in a folder such as 2_Dense"
        raise ModelError(f"model.path: {found}; take the model's own folder, not a conversion that moves it")
    weights = {name: array for name, array in weights.items() if name.split(".")[0] not in {*OTHER_HEADS, *LM_HEADS}}
    if TEXT in children and (own := text_weights(weights)):  # of a vision model, which ``AutoModel`` saves under names of its own
        weights = {f"{TEXT}.{name}": array for name, array in own.items() if name.split(".")[0] not in LM_HEADS}
    bare = BODY in children and not any(name.split(".")[0] in children for name in weights)
    return {f"{BODY}.{name}": array for name, array in weights.items()} if bare else weights


def _leave_out_heads(network: nn.Module, weights: Weights) -> None:
    """Puts a stand-in in the place of each LM head that has no weights, and states in the place of logits where the head is in the body."""
    if isinstance(text := network.get(TEXT), nn.Module):
        _leave_out_heads(text, {name.removeprefix(f"{TEXT}."): array for name, array in weights.items()})
    body = network.get(BODY)
    inner = body.get(INNER_HEAD) if isinstance(body, nn.Module) else None
    if isinstance(body, nn.Module) and isinstance(inner, nn.Linear):
        body[INNER_HEAD], network[INNER_HEAD] = nn.Identity(), NoHead(inner.weight.shape[0])
        network.__class__ = _headed(type(network))
        weights.pop(f"{BODY}.{INNER_HEAD}.weight", None)
    for name in LM_HEADS:
        head = network.get(name)
        if isinstance(head, nn.Linear) and f"{name}.weight" not in weights:
            network[name] = NoHead(head.weight.shape[0])


def _headed(kind: Any) -> type:
    """Returns a class of networks of this kind whose logits are those of a head behind the body."""

    class HeadedNetwork(kind):
        """A network with a head called ``INNER_HEAD``."""

        def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
            """Returns logits [B, T, V]."""
            return self[INNER_HEAD](super().__call__(*args, **kwargs))

    return HeadedNetwork


class NoHead(nn.Module):
    """Stands for an LM head: as wide, and its logits are the states over and over. So a trial of logits is one of the states."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def __call__(self, x: mx.array) -> mx.array:
        """Returns [..., width] of states [..., H]."""
        return x[..., mx.arange(self.width) % x.shape[-1]]
