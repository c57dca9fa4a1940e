"""Loads a checkpoint as a pooling model: its body and its head, in the precision that suits the device."""

from ...configs.schema import ModelConfig
from ..pooling.spec import PoolingSpec
from .checkpoint import Checkpoint
from .loader import LanguageModel, load_model, outline, size


def load_pooling_model(config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int) -> LanguageModel:
    """Loads the weights as ``loader.load_model`` does. Raises ModelError where body or head cannot be loaded."""
    from ..pooling.decoder_body import DecoderBody
    from ..pooling.vectors import PoolingNetwork

    model = load_model(config, checkpoint, memory)
    return _with_network(model, PoolingNetwork(DecoderBody(model.network), pooling), pooling)


def outline_pooling_model(config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int) -> LanguageModel:
    """Returns the model as ``load_pooling_model`` would, without its weights."""
    from ..pooling.decoder_body import DecoderBody
    from ..pooling.vectors import PoolingNetwork

    model = outline(config, checkpoint, memory)
    return _with_network(model, PoolingNetwork(DecoderBody(model.network), pooling), pooling)


def pooling_size(config: ModelConfig, checkpoint: Checkpoint, pooling: PoolingSpec, memory: int) -> tuple[int, bool | None]:
    """Returns the bytes of the weights, and whether they would be dequantized; as ``loader.size``."""
    return size(config, checkpoint, memory)


def _with_network(model: LanguageModel, network: object, pooling: PoolingSpec) -> LanguageModel:
    from dataclasses import replace

    return replace(model, network=network, pooling=pooling)
