"""Makes a head with its weights, as a pooling spec says."""

from pathlib import Path
from typing import Any

import mlx.core as mx

from ..core.errors import ModelError, first_line
from .dense_layer import Dense
from .embedding_head import EmbeddingLayers
from .spec import EmbeddingHead, PoolingSpec


def head_network(spec: PoolingSpec) -> Any:
    """Returns the head of a ``PoolingNetwork``, its weights read lazily. Raises ModelError where they cannot be."""
    head = spec.head
    if not isinstance(head, EmbeddingHead):
        raise ModelError(f"a model with a {type(head).__name__} cannot be loaded yet")
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
