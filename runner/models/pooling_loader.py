"""Loads a checkpoint as a pooling model: its body and its head, in the precision that suits the device."""

from dataclasses import replace
from typing import Any

from ...configs.schema import ModelConfig
from ...kernels import backend
from ..pooling.spec import PoolingSpec
from .checkpoint import Checkpoint
from .loader import LanguageModel, load_model, outline, size


def load_pooling_model(config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int) -> LanguageModel:
    """Loads the weights as ``loader.load_model`` does. Raises ModelError where body or head cannot be loaded."""
    backend.load_mlx()
    from ..encoders.registry import encoder_class
    from .encoder_loader import load_encoder

    if encoder_class(checkpoint.config) is not None:
        return _pooling(load_encoder(config, checkpoint, memory), pooling)
    return _pooling(load_model(config, checkpoint, memory), pooling)


def outline_pooling_model(config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int) -> LanguageModel:
    """Returns the model as ``load_pooling_model`` would, without its weights."""
    backend.load_mlx()
    from ..encoders.registry import encoder_class
    from .encoder_loader import outline_encoder

    if encoder_class(checkpoint.config) is not None:
        return _pooling(outline_encoder(config, checkpoint, memory), pooling)
    return _pooling(outline(config, checkpoint, memory), pooling)


def pooling_size(config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int) -> tuple[int, bool | None]:
    """Returns the bytes of the weights, and whether they would be dequantized; as ``loader.size``."""
    backend.load_mlx()
    from ..encoders.registry import encoder_class
    from .encoder_loader import encoder_size

    if encoder_class(checkpoint.config) is not None:
        return encoder_size(config, checkpoint, memory)
    return size(config, checkpoint, memory)


def _pooling(model: LanguageModel, pooling: PoolingSpec) -> LanguageModel:
    """Returns the model with its head."""
    import mlx.core as mx

    from ..encoders.encoder import Encoder
    from ..pooling.decoder_body import DecoderBody
    from ..pooling.head_network import head_network
    from ..pooling.vectors import PoolingNetwork

    body: Any = model.network if isinstance(model.network, Encoder) else DecoderBody(model.network)
    head = head_network(pooling)
    mx.eval(head.parameters())
    return replace(model, network=PoolingNetwork(body, head), pooling=pooling)
