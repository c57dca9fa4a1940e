"""Makes a head with its weights, as a pooling spec says."""

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from ..core.errors import ModelError, first_line
from .classifier_heads import ClassifierNetwork, TokenScore
from .decoder_body import DecoderBody
from .dense_layer import Dense
from .embedding_head import EmbeddingLayers
from .spec import ClassifierHead, PoolingSpec, TokenHead


def head_network(spec: PoolingSpec, body: Any) -> nn.Module:
    """Returns the head of a ``PoolingNetwork``, its weights read lazily. Raises ModelError where they cannot be."""
    head = spec.head
    if isinstance(head, ClassifierHead):
        classifier = ClassifierNetwork(head)
        classifier.load()
        return classifier
    if isinstance(head, TokenHead):
        if not isinstance(body, DecoderBody):
            raise ModelError("the logits of two tokens are a language model's, and this is an encoder; use job: classify with its own head")
        return TokenScore(body.call, head)
    network = EmbeddingLayers(head)
    for layer in network.layers:
        if isinstance(layer, Dense):
            _load(layer, layer.layer.folder / "model.safetensors")
    return network


def _load(layer: Dense, path: Path) -> None:
    """Loads a dense layer's weights in float32: they are few, and half precision would round the vectors."""
    try:
        weights = mx.load(str(path))
        assert isinstance(weights, dict)
        layer.load_weights([(name, array.astype(mx.float32)) for name, array in weights.items()])
    except Exception as error:  # a file can be damaged in any way
        raise ModelError(f"{path} cannot be loaded: {first_line(error, None)}; fetch the model anew") from error
