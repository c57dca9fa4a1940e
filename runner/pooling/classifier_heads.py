"""Heads that make logits of hidden states: classifiers and reward models, and a generative reranker's two tokens. Knows no files."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx import nn

from ..encoders.settings import activation
from ..layers.network import Network
from .modes import pool
from .spec import ClassifierHead, HeadLinear, TokenHead
from .weight_files import checkpoint_weights


class ClassifierNetwork(nn.Module):
    """The layers of a ``ClassifierHead``. Its weights are named by their layers' places: ``layers.0.weight``."""

    def __init__(self, head: ClassifierHead):
        super().__init__()
        self.head = head
        self.layers: list[Any] = [
            nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
            if isinstance(layer, HeadLinear)
            else nn.LayerNorm(layer.width, eps=layer.eps, bias=layer.bias)
            for layer in head.layers
        ]
        named = [layer.activation if isinstance(layer, HeadLinear) else None for layer in head.layers]
        self._activations: list[Any] = [_head_activation(name) for name in named]

    def __call__(self, states: mx.array, tokens: mx.array, lengths: mx.array, starts: mx.array) -> mx.array:
        """Returns logits [B, labels] of states [B, T, H] float32; tokens [B, T], lengths and starts [B] say which of them are read."""
        if self.head.reads == "last":
            vectors = _picked(states, last_counted(tokens, lengths, self.head.pad))
        else:
            vectors = pool(states, lengths, starts, "cls" if self.head.reads == "first" else "mean")
        for layer, activated in zip(self.layers, self._activations, strict=True):
            vectors = activated(layer(vectors))
        return vectors

    def load(self) -> None:
        """Reads the weights from the checkpoint, lazily, in float32. Raises ModelError where a file is damaged."""
        weights = checkpoint_weights(self.head.folder)
        self.load_weights(
            [
                (f"layers.{place}.{part}", weights[f"{layer.name}.{part}"].astype(mx.float32))
                for place, layer in enumerate(self.head.layers)
                for part in (("weight", "bias") if layer.bias else ("weight",))
            ]
        )


class TokenScore(nn.Module):
    """A generative reranker's log-odds of two tokens, by the head of the language model itself."""

    def __init__(self, network: Network, head: TokenHead):
        super().__init__()
        self.head = head
        self._network = network

    def __call__(self, states: mx.array, tokens: mx.array, lengths: mx.array, starts: mx.array) -> mx.array:
        """Returns the log-odds [B, 1] of states [B, T, H]; lengths [B] say which of them is the last.

        Where the logits are a product and nothing more, only the rows of the two tokens are computed.
        """
        states = _picked(states, lengths - 1)
        wanted = mx.array([self.head.yes] if self.head.no is None else [self.head.yes, self.head.no])
        product = self._network.product(states)
        if product is None:
            logits = self._network.logits(states)[:, wanted]
        else:
            bias = None if product.bias is None else product.bias[wanted]
            logits = replace(product, weight=product.weight[wanted], bias=bias).logits()
        logits = logits.astype(mx.float32)
        return logits if self.head.no is None else logits[:, :1] - logits[:, 1:]


def _head_activation(name: str | None) -> nn.Module:
    if name is None:
        return nn.Identity()
    return nn.Tanh() if name == "tanh" else activation(name)


def last_counted(tokens: mx.array, lengths: mx.array, pad: int | None) -> mx.array:
    """Returns the place [B] of each row's last token that is not ``pad``; 0 where all are, as transformers does.

    pad 9      5 6 7 9 | 9 9      -> 2     (what stands behind the bar is beyond the row's length)
    no pad     5 6 7 9 | 9 9      -> 3
    """
    at = mx.arange(tokens.shape[1])[None]
    counted = at < lengths[:, None]
    if pad is not None:
        counted = counted & (tokens != pad)
    return mx.where(counted, at, 0).max(axis=1)


def _picked(states: mx.array, places: mx.array) -> mx.array:
    """Returns one state a row [B, H] of states [B, T, H], at ``places`` [B]."""
    return mx.take_along_axis(states, places[:, None, None], axis=1)[:, 0]
